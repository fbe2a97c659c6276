"""The verdicts of two processes are those of one that sees all their data; and no fault makes one wait for ever."""

import numpy as np
import pytest
from ranks.judged import BARE, CASES, SPLIT
from ranks.strategies import HAS_FSDP, needs_fsdp

pytestmark = pytest.mark.spawns

ONE_OF_TWO = [case for case in CASES if case.startswith("fault")]
SAME = [case for case in CASES if case not in ONE_OF_TWO]
JOBS = [f"ddp:{case}" for case in (*CASES, "resumed")] + [f"tensor:{case}" for case in SPLIT]
JOBS += [f"fsdp:{case}" for case in (*SPLIT, "resumed")] if HAS_FSDP else []


@pytest.fixture(scope="module")
def alone(saved_by):
    kept = saved_by("judged", [f"auto:{case}" for case in SAME], 1, ranks=1)
    return {case: kept[f"auto:{case}"][0] for case in SAME}


@pytest.fixture(scope="module")
def together(saved_by):
    return saved_by("judged", JOBS, 2)


def said_of(kept):
    return [(v.severity, v.rule, v.module, v.since, v.until, v.batch_idx) for v in kept.verdicts]


@pytest.mark.parametrize("case", SAME)
def test_two_processes_give_the_verdicts_of_one(alone, together, case):
    mine, other = together[f"ddp:{case}"]
    assert said_of(mine) == said_of(alone[case])
    assert mine.steps == other.steps == alone[case].steps


@pytest.mark.parametrize("case", SAME)
def test_two_processes_have_the_losses_of_one_also_after_the_last_look(alone, together, case):
    mine, theirs = together[f"ddp:{case}"][0], alone[case]
    seen, expected = ([loss for look in kept.looks for loss in look.losses] for kept in (mine, theirs))
    assert [(loss.step, loss.batch_idx) for loss in seen] == [(loss.step, loss.batch_idx) for loss in expected]
    np.testing.assert_allclose([loss.value for loss in seen], [loss.value for loss in expected], rtol=1e-9)
    np.testing.assert_allclose(mine.losses, theirs.losses, rtol=1e-9)


@pytest.mark.parametrize(
    ("case", "rule", "module"),
    [
        ("dead", "dead_units", "net.2"),
        ("nan", "nonfinite", "net.7"),
        ("late nan", "nonfinite", "net.6"),
        ("nan behind the last measured", "nonfinite", "net.7"),
        ("spike", "spike", ""),
    ],
)
def test_the_planted_fault_is_said(together, case, rule, module):
    assert (rule, module) in {(verdict.rule, verdict.module) for verdict in together[f"ddp:{case}"][0].verdicts}


@pytest.mark.parametrize("case", ["dead on rank 0", "dead on rank 1"])
def test_what_is_dead_on_one_rank_alone_is_not_dead(together, case):
    assert "dead_units" not in {verdict.rule for verdict in together[f"ddp:{case}"][0].verdicts}


def test_both_processes_end_the_fit_at_the_same_step(together):
    one, other = (kept.steps for kept in together["ddp:stop"])
    assert one == other < 14


@pytest.mark.parametrize("case", ONE_OF_TWO)
def test_after_a_fault_on_one_rank_both_go_on_without_it_and_say_so_once(together, case):
    for rank, kept in enumerate(together[f"ddp:{case}"]):
        assert kept.steps == 14
        assert len(kept.said) == 1
        is_mine = str(rank) == case[-1]
        assert ("broken on purpose" if is_mine else "another rank has stopped measuring") in kept.said[0]


@pytest.mark.parametrize("case", BARE)
@pytest.mark.parametrize("strategy", ["ddp", "tensor", pytest.param("fsdp", marks=needs_fsdp)])
def test_two_processes_train_as_they_do_without_a_monitor(together, strategy, case):
    for kept in together[f"{strategy}:{case}"]:
        assert kept.weights.keys() == kept.bare.keys()
        assert all(value.equal(kept.bare[name]) for name, value in kept.weights.items())


@needs_fsdp
@pytest.mark.parametrize("case", SPLIT)
def test_processes_that_keep_a_part_of_each_weight_give_the_verdicts_of_one(alone, together, case):
    kept = together[f"fsdp:{case}"][0]
    mine, theirs = said_of(kept), said_of(alone[case])
    if case == "nan":  # the graph keeps no weights, so that the looks tell the layer
        mine, theirs = ([(rule, since) for _, rule, _, since, *_ in said] for said in (mine, theirs))
    # Whether a weight moves the loss is asked by a replay, which takes whole weights: what follows differs.
    assert mine[:1] == theirs[:1] if case == "dead" else mine == theirs
    assert kept.steps == alone[case].steps


@pytest.mark.parametrize("case", SPLIT)
def test_processes_with_a_part_of_each_layer_give_the_alarms_of_one(alone, together, case):
    # A layer that adds up what the processes have gives no plain tensor: the one behind it is named. And without plain
    # tensors the looks tell where the NaN began, where the graph tells which layer took it.
    place = {"net.3": "net.2", "net.7": "net.6"}
    mine, theirs = (
        [(v.rule, place.get(v.module, v.module), v.since, v.batch_idx) for v in kept.verdicts if v.severity == "alarm"]
        for kept in (together[f"tensor:{case}"][0], alone[case])
    )
    assert mine[:1] == theirs[:1] if case == "dead" else mine == theirs
    assert together[f"tensor:{case}"][0].steps == alone[case].steps


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=needs_fsdp)])
def test_a_fit_of_two_processes_that_is_continued_finds_what_one_without_a_break_does(strategy, together):
    whole, resumed = together[f"{strategy}:dead"][0].verdicts, together[f"{strategy}:resumed"][0]
    assert ("dead_units", "net.2", 0) in [(one.rule, one.module, one.since) for one in whole]
    mine, theirs = (
        [(one.severity, one.rule, one.module) for one in verdicts if one.rule == "dead_units"]
        for verdicts in (resumed, whole)
    )
    assert mine == theirs
