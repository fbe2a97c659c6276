"""`train_eval_gap`: what fires, and what looks alike and is well."""

import math
from dataclasses import replace

import numpy as np
import pytest
from health.looks import readings_of
from health.trainings import LAYERS, seen, training

from hookboard.health.judge import Judge
from hookboard.health.look import Loss
from hookboard.health.rules.evaluation import GAP_BEGIN, GAP_NOTE, OTHER_DATA_GAP
from hookboard.health.rules.evaluation import STRANGE_STATISTICS_DISTANCE as STRANGE
from hookboard.health.run import Run
from hookboard.health.stage_comparison import Gap, Running, StageComparison
from hookboard.measure.row import FIELDS
from hookboard.model.layers import Layer
from hookboard.tracing.questions import RULES

GAP_RULE = RULES["train_eval_gap"]
CHANGING = LAYERS | {"fc1": replace(LAYERS["fc1"], kind="other", has_modes=True)}
"""Layers of which one may do in validation what it does not in training."""


def evaluation(like, shifts):
    """An evaluation loop like a look in training, but for layers whose outputs lie higher."""
    outputs = [one for site, one in like.readings.items() if site.role == "output"]
    outputs = [higher(one, shifts.get(one.site.name, 0.0)) for one in outputs]
    return replace(like, readings=readings_of(outputs), losses=(), stepped={})


def higher(one, by: float):
    rows = one.channels + by * (np.array(FIELDS) == "mean")
    return replace(one, moments=one.moments._replace(mean=one.moments.mean + by), channels=rows)


def judged(*evaluations, edit=lambda look: look, layers=CHANGING, loss=None, has_other_weights=False):
    """The verdicts of a training with an evaluation every 20 steps, from step 39 on; channels have a deviation of 1.

    Each evaluation has this loss, if any.
    """
    judge = Judge([GAP_RULE], layers, 3)
    made = training(40 + 20 * len(evaluations))
    for number, one in enumerate(edit(replace(one, readings=made[0].readings)) for one in made):
        judge.see(one)
        if number >= 39 and (number + 1) % 20 == 0 and (number - 39) // 20 < len(evaluations):
            seen_ = replace(evaluation(one, evaluations[(number - 39) // 20]), has_other_weights=has_other_weights)
            judge.see_evaluation(seen_ if loss is None else replace(seen_, losses=[Loss(one.step, 0, loss)]))
    return judge.verdicts


def behind(shift: float, **others: float):
    """Shifts of this size from fc1 to the end."""
    return {**others, **dict.fromkeys(["fc1", "act1", "head"], shift)}


EVERYWHERE = behind(5.0)
OTHER_DATA = {"fc0": 1.03 * OTHER_DATA_GAP}
NEARLY_OTHER_DATA = {"fc0": 0.97 * OTHER_DATA_GAP}
GAPS = {
    "from a layer to the end": ([EVERYWHERE] * 2, [("alarm", "fc1")]),
    "in one evaluation": ([EVERYWHERE], [("note", "fc1")]),
    "in one evaluation and not in the next": ([EVERYWHERE, {}], []),
    "that do not reach the end": ([{"fc1": 5.0}] * 2, [("note", "fc1")]),
    "of less than one deviation": ([behind(0.99 * GAP_NOTE)] * 2, []),
    "of one deviation": ([behind(1.01 * GAP_NOTE)] * 2, [("alarm", "fc1")]),
    "that are hardly there in the layer before": ([behind(5.0, act0=0.9 * GAP_BEGIN)] * 2, [("alarm", "fc1")]),
    "that grow layer by layer": ([behind(5.0, act0=1.1 * GAP_BEGIN)] * 2, [("note", "act0")]),
    # A norm may hide it from later layers.
    "of other data at the first layer": ([OTHER_DATA] * 2, [("alarm", "fc0")]),
    "of data that may be other": ([NEARLY_OTHER_DATA] * 2, [("note", "fc0")]),
    "of other data in one evaluation": ([OTHER_DATA], [("note", "fc0")]),
    "of data that was less other before": ([NEARLY_OTHER_DATA, OTHER_DATA], [("note", "fc0")]),
}


@pytest.mark.parametrize(("evaluations", "said"), GAPS.values(), ids=GAPS)
def test_the_layer_is_named_with_the_first_of_gaps(evaluations, said):
    verdicts = judged(*evaluations)
    assert [(v.severity, v.module) for v in verdicts] == said
    begins = "the gap begins at the input, so the validation data or its handling differs"
    assert [v.evidence.endswith(begins) for v in verdicts] == [module == "fc0" for _, module in said]
    assert [v.since for v in verdicts] == [39] * len(said)


@pytest.mark.parametrize(
    ("changed", "severity"),
    [
        ({}, "note"),
        ({"head": {"kind": "dropout", "has_modes": True}}, "note"),
        ({"fc0": {"has_modes": True}}, "note"),
        ({"act0": {"kind": "dropout", "has_modes": True}}, "alarm"),
        ({"fc1": {"has_modes": True}}, "alarm"),
        ({"fc1": {"is_computed": True}}, "alarm"),
    ],
    ids=["none", "behind it", "before a layer without a gap", "right before it", "itself", "a parametrization"],
)
def test_a_gap_is_an_alarm_only_where_a_layer_may_do_other_things_in_validation(changed, severity):
    layers = LAYERS | {name: replace(LAYERS[name], **fields) for name, fields in changed.items()}
    (verdict,) = judged(EVERYWHERE, EVERYWHERE, layers=layers)
    assert (verdict.severity, verdict.module) == (severity, "fc1")
    assert ("weights change quickly or the data differ" in verdict.evidence) is (severity == "note")


@pytest.mark.parametrize(("loss", "severities"), [(0.5, []), (0.85, []), (1.1, ["alarm"]), (math.nan, ["alarm"])])
def test_nothing_is_said_where_the_loss_in_validation_is_as_good_as_that_in_training(loss, severities):
    """Which falls from 2.3 to about 0.5."""
    verdicts = judged(EVERYWHERE, EVERYWHERE, loss=loss)
    assert [v.severity for v in verdicts] == severities
    if severities:
        assert f"; the logged validation loss is {loss:.3g}, and the training loss 0." in verdicts[0].evidence


def test_nothing_is_blamed_where_validation_runs_with_other_weights():
    (verdict,) = judged(EVERYWHERE, EVERYWHERE, has_other_weights=True)
    assert verdict.severity == "note"
    assert "validation ran with other weights than training" in verdict.evidence
    assert "data" not in verdict.evidence + verdict.advice


def test_outputs_that_differ_as_much_from_look_to_look_are_well():
    def edit(look):
        return replace(look, readings=readings_of(higher(one, 3.0 * (look.step % 2)) for one in look.readings.values()))

    assert judged(EVERYWHERE, EVERYWHERE, edit=edit) == ()


@pytest.mark.parametrize(
    ("looks", "step", "fires"),
    [([0, 20, 40], 80, True), ([0, 20, 40], 81, False), ([0], 40, False)],
    ids=["as far from the last measured as that is from the first", "farther", "one look alone"],
)
def test_an_evaluation_far_behind_the_looks_is_not_compared_with_them(looks, step, fires):
    judge = Judge([GAP_RULE], LAYERS, 3)
    made = training(60)
    for number in looks:
        judge.see(replace(made[number], readings=made[0].readings))
    for later in (step, step):
        judge.see_evaluation(replace(evaluation(made[0], EVERYWHERE), step=later))
    assert bool(judge.verdicts) is fires


def test_data_that_differ_are_found_in_layers_that_were_replaced_too():
    judge = Judge([GAP_RULE], LAYERS, 3)
    made = training(60)
    for number, one in enumerate(made):
        judge.see(replace(one, readings=made[0].readings))
        if number in (39, 59):
            judge.see_evaluation(evaluation(replace(one, readings=made[0].readings), {"fc0": 2 * OTHER_DATA_GAP}))
            judge.run.follow({name: replace(layer) for name, layer in LAYERS.items()})
    assert [v.severity for v in judge.verdicts] == ["alarm"]


NORM = Layer("bn", "BatchNorm1d", "norm", ("bn.weight",), frozenset({"bn.weight"}), {"bn.weight": (8,)})


def compared(*norms, sizes=(0.0, 0.0, 2.0, 2.0, 2.0), losses=()):
    """What is said of evaluations with these gaps and losses whose norms lie so far from every batch."""
    run = seen(training(60))
    run.evaluation_losses = [Loss(0, 0, value) for value in losses]
    run.follow(CHANGING)
    gaps = [Gap(layer, size, 0.0, 1.0, 1.0) for layer, size in zip(LAYERS.values(), sizes, strict=True)]
    for step, before in zip((39, 59)[-len(norms) :], norms, strict=True):
        known = [Running(replace(NORM, name=name), 2 * far, far) for name, far in before.items()]
        run.comparisons.append(StageComparison(step, gaps, known))
    return list(GAP_RULE.judge(run))


@pytest.mark.parametrize(("times", "severity"), [(0.97, "note"), (1.03, "alarm")])
def test_running_statistics_that_match_no_batch_are_an_alarm(times, severity):
    (finding,) = compared({"bn": times * STRANGE}, {"bn": 2 * STRANGE})
    assert (finding.module, finding.severity) == ("fc1", severity)
    assert ("running statistics of bn match none of the recent batches" in finding.evidence) is (severity == "alarm")


def test_running_statistics_that_lag_behind_are_a_note_however_large_the_gap():
    (finding,) = compared({"bn": 0.1}, {"bn": 0.1}, sizes=(0.0, 0.0, 9.0, 9.0, 9.0))
    assert finding.severity == "note"
    assert "they lag behind" in finding.evidence


@pytest.mark.parametrize(("left", "severity"), [(6.1, "note"), (6.3, "alarm")])
def test_running_statistics_on_their_way_are_an_alarm_if_they_need_longer_than_the_run_so_far(left, severity):
    """From 8 to 6.2 in 20 steps: it would take another 58 to come to 1, and the run is at step 59."""
    (finding,) = compared({"bn": 8 * STRANGE}, {"bn": left * STRANGE}, losses=[9.0, 9.0])
    assert finding.severity == severity
    on_their_way = "of the recent batches, but they have come closer since the previous validation"
    assert (on_their_way in finding.evidence) is (severity == "note")


def test_the_same_norm_must_be_strange_in_both_evaluations():
    one, other = {"bn": 2 * STRANGE, "bn2": 0.0}, {"bn": 0.0, "bn2": 2 * STRANGE}
    assert [s.severity for s in compared(one, other)] == ["note"]
    assert [s.severity for s in compared(one, one)] == ["alarm"]


def test_where_a_model_blew_up_a_gap_at_the_first_weights_may_be_theirs(monkeypatch):
    monkeypatch.setattr(Run, "has_blown_up", True)
    (finding,) = compared({}, {}, sizes=(3 * OTHER_DATA_GAP,) * 5)
    assert finding.evidence.endswith(
        "validation data or its handling differs, or the layer's weights have changed since"
    )
