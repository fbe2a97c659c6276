"""`spike` and `not_learning`: what fires, and what looks alike and is well."""

import math
from dataclasses import replace

import numpy as np
import pytest
from health import looks
from health.looks import reading, row
from health.trainings import LAYERS, WEIGHTS, WINDOW, falling, findings, judged, of, places, seen, stuck, training

from hookboard.health.judge import Judge
from hookboard.health.look import Look, Loss
from hookboard.health.losses import SPIKE_ALONE_SHARE, STEPS_BEFORE_STUCK
from hookboard.health.rules.learning import (
    ANSWER_SPREAD_MIN,
    ANSWER_SPREAD_SHARE_MIN,
)
from hookboard.health.run import Run, StepFacts
from hookboard.model.layers import Layer
from hookboard.tracing.questions import RULES

SPIKE, NOT_LEARNING = RULES["spike"], RULES["not_learning"]


def spiked(steps: int, at: int, value: float, after: list[float] | None = None) -> list[float]:
    losses = [2.3 * 0.99**i + 0.02 * float(np.sin(7 * i)) for i in range(steps)]
    losses[at] = value
    if after is not None:
        losses[at + 1 :] = after
    return losses


def test_a_spike_that_does_no_harm_is_a_note_that_names_the_batch():
    verdicts = judged([SPIKE], training(100, losses=spiked(100, 60, 40.0))).verdicts
    assert [(v.severity, v.since, v.until, v.batch_idx) for v in verdicts] == [("note", 60, 60, 60)]


def test_a_spike_after_which_the_loss_never_comes_back_is_an_alarm():
    made = training(100, losses=spiked(100, 60, 40.0, stuck(39)))
    verdicts = judged([SPIKE], made).verdicts
    assert [(v.severity, v.since, v.batch_idx) for v in verdicts] == [("alarm", 60, 60)]
    assert "batch 60" in verdicts[0].evidence


@pytest.mark.parametrize(("share", "severity"), [(0.9 * SPIKE_ALONE_SHARE, "alarm"), (1.1 * SPIKE_ALONE_SHARE, "note")])
def test_losses_behind_a_spike_that_are_as_high_show_other_data_or_targets(share, severity):
    """As in a curriculum; `share` is how high they lie, of the height of the spike."""
    losses = spiked(120, 60, 40.0)
    usual = float(np.median(losses[:60]))
    losses[61:65] = [usual + share * (40.0 - usual)] * 4
    losses[65:] = stuck(55)
    verdicts = judged([SPIKE], training(120, losses=losses)).verdicts
    assert [(v.severity, v.since) for v in verdicts] == [(severity, 60)]


def test_a_loss_whose_very_first_value_is_high_has_not_blown_up():
    assert not seen(training(60, losses=[68.0, *[5.0] * 59])).has_blown_up
    assert seen(training(60, losses=[5.0, 5.0, 68.0, *[5.0] * 57])).has_blown_up


def test_the_spike_is_found_between_two_looks():
    made = training(10, losses=spiked(100, 63, 40.0, stuck(36)), every=10)
    assert [(v.since, v.batch_idx) for v in judged([SPIKE], made).verdicts] == [(63, 63)]


def test_a_loss_within_its_noise_is_no_spike():
    losses = falling(50) + [1.0 + 0.1 * float(x) for x in np.random.default_rng(0).standard_t(5, 500)]
    assert judged([SPIKE], training(110, losses=losses, every=5)).verdicts == ()


def test_a_loss_that_rose_to_chance_is_not_learning_since_it_was_lowest():
    losses = [*np.linspace(2.3, 0.2, 60), *stuck(STEPS_BEFORE_STUCK)]
    (found,) = findings(NOT_LEARNING, training(len(losses), losses=losses))
    assert found.evidence.startswith("the loss rose from 0.")
    assert 56 <= found.since <= 64


@pytest.mark.parametrize(("value", "fires"), [(1.4, False), (1.6, True)])
def test_a_spike_is_half_as_high_again_as_a_loss_however_little_that_varies(value, fires):
    losses = [1.0 + 1e-4 * (i % 2) for i in range(60)]
    assert bool(judged([SPIKE], training(60, losses=[*losses[:-1], value])).verdicts) is fires


@pytest.mark.parametrize(("sizes", "is_told"), [((0.01, 0.02, 0.02), False), ((0.01, 0.02, 0.03), True)])
def test_nobody_is_told_to_clip_gradients_whose_largest_norm_comes_again(sizes, is_told):
    def change(step):
        size = sizes[0 if step < 57 else step - 57]
        rows = [row(100, 0.0, size)] * 8
        return {(w, "parameter_grad"): reading(w, "parameter_grad", rows) for w in WEIGHTS}

    (finding,) = findings(SPIKE, training(60, change, losses=spiked(60, 59, 40.0)))
    assert ("clip gradients" in finding.advice) is is_told


def test_harm_that_began_before_the_spike_is_not_blamed_on_it():
    losses = [*np.linspace(2.3, 0.5, 60), *np.linspace(0.5, 2.3, 60), 50.0, *stuck(60)]
    made = training(len(losses), losses=losses)
    assert all(v.severity == "note" for v in judged([SPIKE], made).verdicts)


def always(change):
    return lambda step: change


def of_weights(role, size):
    return {(w, role): of(w, role, size) for w in WEIGHTS}


STILL = always(of_weights("parameter_update", 1e-9))
"""A model that does not move, so that nothing is said before its training ends."""


def test_of_a_loss_at_chance_with_gradients_that_agree_on_nothing_the_data_is_suspected_and_no_layer_is_acquitted():
    found = findings(NOT_LEARNING, training(STEPS_BEFORE_STUCK, losses=stuck(STEPS_BEFORE_STUCK)))
    assert places(found) == [("", "alarm")]
    assert found[0].since == 0
    assert found[0].advice.endswith("then check the loss function, and that inputs and labels match")


def test_a_loss_that_came_down_to_how_frequent_the_classes_are_may_be_on_a_plateau():
    losses = [*np.linspace(2.1, 1.7, 30), *[1.7] * (STEPS_BEFORE_STUCK - 30)]
    alike = {("head", "output"): of("head", "output", 1.1 * ANSWER_SPREAD_MIN)}
    found = findings(NOT_LEARNING, training(STEPS_BEFORE_STUCK, lambda step: alike, losses=losses))
    assert places(found) == [("", "note")]


@pytest.mark.parametrize(
    ("steps", "options"),
    [
        (STEPS_BEFORE_STUCK - 1, {}),
        (STEPS_BEFORE_STUCK, {"change": always(of_weights("parameter_grad", 0.01))}),
        (STEPS_BEFORE_STUCK, {"change": STILL}),
        (STEPS_BEFORE_STUCK, {"rate": lambda step: 1e-5 * (step + 1)}),
    ],
    ids=["few steps", "gradients that agree", "a model that does not move", "a rate that still rises"],
)
def test_data_is_not_blamed_for_a_loss_that_stays_with(steps, options):
    assert findings(NOT_LEARNING, training(steps, losses=stuck(steps), **options)) == []


def test_gradients_of_two_logits_are_alike_by_chance_and_say_nothing():
    """What is left where all but the last layer of a classifier of two classes is frozen."""
    few = {(w, "parameter_grad"): None for w in WEIGHTS[:-1]}
    last = {
        (WEIGHTS[-1], "parameter_grad"): reading(WEIGHTS[-1], "parameter_grad", [row(1, 0.01, 0.0), row(1, -0.01, 0.0)])
    }
    steps = STEPS_BEFORE_STUCK
    (found,) = findings(NOT_LEARNING, training(steps, lambda step: few | last, losses=stuck(steps)))
    assert "cosine" not in found.evidence


@pytest.mark.parametrize(
    ("frozen", "advised"),
    [
        (WEIGHTS[:5], "check whether fc0, fc1 should be frozen; then change the learning rate"),
        (WEIGHTS[:1], "change the learning rate"),
    ],
)
def test_of_a_loss_that_stays_the_layers_that_are_frozen_are_to_be_looked_at_before_the_rate(frozen, advised):
    steps = STEPS_BEFORE_STUCK
    (found,) = findings(
        NOT_LEARNING, training(steps, losses=stuck(steps), edit=lambda look: replace(look, frozen={*frozen}))
    )
    assert found.advice.startswith(advised)


@pytest.mark.parametrize(("batch", "fires"), [(9, False), (5, True)])
def test_a_wild_last_batch_of_an_epoch_is_no_spike(batch, fires):
    """It has fewer samples, as a rule."""
    run = Run({}, WINDOW)
    for step in range(60 + batch + 1):
        value = 3.0 if step == 60 + batch else 0.3 + 0.01 * (step % 3)
        run.see(Look(step, step % 10, looks.readings_of([]), [Loss(step, step % 10, value)]))
    assert bool(list(SPIKE.judge(run))) is fires


def answered(deviation: float, size: float):
    """What is said of a loss at chance where the answers have this deviation over the samples, and this RMS."""
    mean = (size**2 - deviation**2) ** 0.5

    def change(step):
        return {
            ("head", "output"): reading("head", "output", [row(100, mean * (-1) ** i, deviation) for i in range(8)])
        }

    return places(findings(NOT_LEARNING, training(STEPS_BEFORE_STUCK, change, losses=stuck(STEPS_BEFORE_STUCK))))


def test_small_answers_that_differ_by_a_share_of_their_size_speak():
    small = ANSWER_SPREAD_MIN / 2
    assert answered(small, size=small / (1.03 * ANSWER_SPREAD_SHARE_MIN)) == [("", "alarm")]
    assert answered(small, size=small / (0.97 * ANSWER_SPREAD_SHARE_MIN)) == []


def test_large_answers_that_differ_by_a_smaller_share_speak_too():
    assert answered(1.03 * ANSWER_SPREAD_MIN, size=2.0) == [("", "alarm")]
    assert answered(0.97 * ANSWER_SPREAD_MIN, size=2.0) == []


@pytest.mark.parametrize(("third", "is_classifier"), [(-0.02, True), (0.02, False)])
def test_outputs_whose_gradients_do_not_add_up_to_0_are_no_classifiers(third, is_classifier):
    rows = [looks.row(mean=mean, deviation=0.01) for mean in (0.01, 0.01, third)]
    gradient = {("head", "grad_output"): looks.reading("head", "grad_output", rows)}
    run = judged([], training(3, lambda step: gradient)).run
    assert (run.losses.chance is not None) is is_classifier


@pytest.mark.parametrize("is_sum", [False, True])
def test_of_a_sum_of_losses_nobody_knows_what_chance_gives(is_sum):
    judge = Judge([], LAYERS, WINDOW)
    judge.run.facts = StepFacts(is_sum=is_sum)
    for look in training(3, lambda step: {}):
        judge.see(look)
    assert (judge.run.losses.chance is None) is is_sum


def unbalanced(step):
    """No softmax follows these outputs, so that chance is not known."""
    return {("head", "grad_output"): of("head", "grad_output", 0.01, mean=0.01)}


@pytest.mark.parametrize("rule", ["not_learning", "update_too_small"])
def test_a_loss_that_stays_may_be_that_of_a_trained_model_where_chance_is_not_known(rule):
    small = {(w, "parameter_update"): of(w, "parameter_update", 1e-6) for w in WEIGHTS}
    change = (lambda step: unbalanced(step) | small) if rule == "update_too_small" else unbalanced
    made = training(STEPS_BEFORE_STUCK, change, losses=stuck(STEPS_BEFORE_STUCK))
    assert places(findings(RULES[rule], made)) == [("", "note")]


@pytest.mark.parametrize(("outputs", "severity"), [(1.0, "note"), (1e5, "alarm")])
def test_a_loss_far_below_0_is_an_alarm_if_the_outputs_went_along(outputs, severity):
    def change(step):
        return unbalanced(step) | {("head", "output"): of("head", "output", outputs if step else 1.0)}

    losses = [2.3] * 4 + list(np.linspace(2.3, -1000.0, 56))
    assert places(findings(NOT_LEARNING, training(60, change, losses=losses))) == [("", severity)]


def ended(losses, constant=math.nan, change=None, resumed=0, layers=LAYERS, findings=(), **options):
    """Severities and advice of what is said at the end of a training, whose last losses no look has seen."""
    looks_ = max((len(losses) - 8) // 8, 1)
    made = training(looks_, change or unbalanced, losses=losses, every=8, layers=layers, **options)
    judge = Judge([NOT_LEARNING], layers, WINDOW)
    for one in made:
        later = [replace(loss, step=loss.step + resumed) for loss in one.losses]
        judge.see(replace(one, losses=later))
        judge.run.facts = StepFacts(constant_loss=constant, findings=findings)
    last = range(8 * looks_, len(losses))
    verdicts = judge.end([Loss(step + resumed, step, losses[step]) for step in last])
    return [(v.severity, v.advice) for v in verdicts if "raining ended" in v.evidence]


STEADY = "train longer, or try other learning rates"


@pytest.mark.parametrize(("end", "said"), [(4.1, [("note", STEADY)]), (3.9, [])])
def test_a_loss_that_falls_and_ends_at_twice_that_of_the_best_constant_has_ended_too_early(end, said):
    assert ended([*np.linspace(10, end, 150), *[end] * 50], constant=2.0) == said


def test_a_loss_that_the_first_steps_have_raised_asks_for_a_lower_rate():
    losses = [3.3, *[25.0] * 20, *np.linspace(25, 4.4, 100), *[4.4] * 79]
    [(severity, advice)] = ended(losses, constant=2.0)
    assert severity == "alarm"
    assert advice.startswith("lower the learning rate, or warm it up from 0; ")
    # It is the constant of the first batch.
    assert advice.endswith("ignore this if the targets of later batches are larger")


@pytest.mark.parametrize(("end", "is_said"), [(0.96, True), (0.94, False)])
def test_a_loss_that_ends_where_it_began_is_an_alarm_if_the_best_constant_gives_as_much(end, is_said):
    losses = [1.0 + 0.001 * (i % 2) - (1 - end) * i / 199 for i in range(200)]
    assert [severity for severity, _ in ended(losses, constant=1.0)] == ["alarm"] * is_said


def test_nothing_is_said_of_a_loss_that_is_as_noisy_as_it_is_large():
    """The loss of the constant, which is that of one batch, then tells little."""
    rng = np.random.default_rng(0)
    losses = [float(abs(1 + 0.5 * rng.normal())) for _ in range(200)]
    assert ended(losses, constant=1.0) == []


def test_a_model_that_was_trained_before_may_stay_where_it_is():
    assert ended([0.3] * 200, constant=1.0) == []


def test_a_fit_that_goes_on_is_not_judged_by_where_it_began():
    assert ended([10.0] * 200, constant=1.0, resumed=1000) == []


@pytest.mark.parametrize(("share", "is_said"), [(0.97, True), (0.93, False)])
def test_a_classifier_that_ends_at_chance_is_an_alarm(share, is_said):
    chance = math.log(8)
    losses = [*np.linspace(chance, share * chance, 50), *[share * chance] * 150]
    found = ended(losses, change=STILL)
    assert [severity for severity, _ in found] == ["alarm"] * is_said


@pytest.mark.parametrize(("share", "severity"), [(0.97, "note"), (1.01, "alarm")])
def test_a_classifier_that_has_come_down_to_a_little_below_chance_may_be_on_a_plateau(share, severity):
    """As a transformer that has learnt how frequent its tokens are, and nothing else yet."""
    chance = math.log(8)
    losses = [*np.linspace(1.2 * chance, share * chance, 20), *[share * chance] * 90]
    assert [said for said, _ in ended(losses, change=STILL)] == [severity]


@pytest.mark.parametrize(
    ("steps", "rate", "severity"),
    [
        (STEPS_BEFORE_STUCK - 1, 1e-3, "note"),
        (STEPS_BEFORE_STUCK, 1e-3, "alarm"),
        (200, lambda step: 1e-5 * (step + 1), "note"),
    ],
)
def test_few_steps_and_a_rate_that_still_rises_make_it_a_note(steps, rate, severity):
    assert [said for said, _ in ended([10.0] * steps, constant=1.0, rate=rate)] == [severity]


@pytest.mark.parametrize(("dropped", "severity"), [(60, "alarm"), (80, "note")])
def test_a_dropout_that_drops_most_values_makes_it_a_note(dropped, severity):
    layers = looks.layers(*list(LAYERS.values())[:2], Layer("drop", "Dropout", "dropout"), *list(LAYERS.values())[2:])
    spread = 1.16  # the RMS of the usual outputs
    drop = reading("drop", "output", [looks.dropped(100, dropped, spread) for _ in range(8)])
    change = lambda step: unbalanced(step) | {("drop", "output"): drop}  # noqa: E731
    assert [said for said, _ in ended([10.0] * 200, constant=1.0, layers=layers, change=change)] == [severity]


@pytest.mark.parametrize(("end", "is_said"), [(1.12, True), (1.08, False)])
def test_a_classifier_that_ends_worse_than_it_was_given_is_an_alarm(end, is_said):
    """As adapters whose rate is too high: chance is 2.08, and 5 % of that are 0.1."""
    found = ended([1.0, *[end] * 199], change=lambda step: {})
    assert found == [("alarm", "lower the learning rate, or warm it up from 0")] * is_said


def validated(values, losses=None):
    """What is said after validations with these losses, at every 10th step of a training whose loss falls."""
    judge = Judge([RULES["overfitting"]], LAYERS, WINDOW)
    for look in training(10 * len(values), losses=losses or falling(10 * len(values))):
        judge.see(look)
        if look.step % 10 == 9:
            loss = Loss(look.step, 0, values[look.step // 10])
            judge.see_evaluation(replace(look, losses=[loss]))
    return judge.verdicts


@pytest.mark.parametrize(
    ("values", "since", "said"),
    [
        ([2.2, 2.5, 2.8, 3.1, 3.4], 9, "rose from 2.2 (the first validation, at step 9) to 3.4"),
        ([2.0, 1.5, 1.0, 1.1, 1.4, 1.6], 29, "rose from 1 (its lowest, at step 29) to 1.6"),
    ],
)
def test_a_validation_loss_that_rises_while_that_in_training_falls_is_a_note_since_it_was_lowest(values, since, said):
    (verdict,) = validated(values)
    assert (verdict.severity, verdict.since) == ("note", since)
    assert said in verdict.evidence
    assert ("targets match their inputs" in verdict.advice) == (values[0] == min(values))


@pytest.mark.parametrize(
    "values",
    [[2.2, 2.0, 1.8, 1.6, 1.5], [2.2, 1.0, 1.2, 0.9, 1.3, 1.0], [1.0, 0.001, 0.002, 0.004, 0.004], [2.0, 3.0, 4.0]],
    ids=["falls", "is noisy", "near 0", "too few"],
)
def test_nothing_is_said_of_a_validation_loss_that_falls_or_hardly_rises(values):
    assert validated(values) == ()


def test_a_validation_loss_that_rises_with_that_in_training_is_no_overfitting():
    rising = [1.0 + 0.1 * step for step in range(50)]
    assert validated([2.2, 2.5, 2.8, 3.1, 3.4], rising) == ()
