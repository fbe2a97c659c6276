"""The verdicts of two processes are those of one that sees all their data; and no fault makes one wait for ever."""

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from judged import BARE, CASES

pytestmark = pytest.mark.spawns

SCRIPT = Path(__file__).with_name("judged.py")
ONE_OF_TWO = [case for case in CASES if case.startswith("fault")]
SAME = [case for case in CASES if case not in ONE_OF_TWO]

HAS_FSDP = hasattr(torch.cpu.Stream, "record_event")
needs_fsdp = pytest.mark.skipif(not HAS_FSDP, reason="the FSDP2 of this torch does not run on CPUs")


class Kept(NamedTuple):
    """What one process has seen and said."""

    verdicts: tuple
    looks: list
    said: list
    steps: int
    weights: dict
    bare: dict | None


def trained(run_script, folder, devices, strategy, cases):
    done = run_script(SCRIPT, folder, devices, strategy, *cases, ranks=devices)
    assert done.returncode == 0, done.stderr
    return {
        case: [Kept(*torch.load(folder / f"{case}.{rank}", weights_only=False)) for rank in range(devices)]
        for case in cases
    }


@pytest.fixture(scope="module")
def alone(run_script, tmp_path_factory):
    return {
        case: kept for case, (kept,) in trained(run_script, tmp_path_factory.mktemp("alone"), 1, "auto", SAME).items()
    }


@pytest.fixture(scope="module")
def together(run_script, tmp_path_factory):
    return trained(run_script, tmp_path_factory.mktemp("together"), 2, "ddp", CASES)


def said_of(kept):
    return [(v.severity, v.rule, v.module, v.since, v.until, v.batch_idx) for v in kept.verdicts]


@pytest.mark.parametrize("case", SAME)
def test_two_processes_give_the_verdicts_of_one(alone, together, case):
    assert said_of(together[case][0]) == said_of(alone[case])
    assert together[case][0].steps == together[case][1].steps == alone[case].steps


@pytest.mark.parametrize("case", SAME)
def test_two_processes_have_the_losses_of_one(alone, together, case):
    mine, theirs = ([loss for look in kept.looks for loss in look.losses] for kept in (together[case][0], alone[case]))
    assert [(loss.step, loss.batch_idx) for loss in mine] == [(loss.step, loss.batch_idx) for loss in theirs]
    np.testing.assert_allclose([loss.value for loss in mine], [loss.value for loss in theirs], rtol=1e-9)


@pytest.mark.parametrize("case", ["healthy", "dead on rank 1", "rare"])
def test_two_processes_have_the_rows_of_one(alone, together, case):
    for mine, theirs in zip(together[case][0].looks, alone[case].looks, strict=True):
        assert mine.readings.keys() == theirs.readings.keys()
        assert mine.stepped == theirs.stepped
        for site, reading in theirs.readings.items():
            found = mine.readings[site].channels
            assert (found is None) == (reading.channels is None), site
            if found is not None:
                np.testing.assert_allclose(found, reading.channels, rtol=1e-6, atol=1e-12)


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
    assert (rule, module) in {(verdict.rule, verdict.module) for verdict in together[case][0].verdicts}


@pytest.mark.parametrize("case", ["dead on rank 0", "dead on rank 1"])
def test_what_is_dead_on_one_rank_alone_is_not_dead(together, case):
    assert "dead_units" not in {verdict.rule for verdict in together[case][0].verdicts}


def test_both_processes_end_the_fit_at_the_same_step(together):
    one, other = (kept.steps for kept in together["stop"])
    assert one == other < 14


@pytest.mark.parametrize("case", ONE_OF_TWO)
def test_after_a_fault_on_one_rank_both_go_on_without_it_and_say_so_once(together, case):
    for rank, kept in enumerate(together[case]):
        assert kept.steps == 14
        assert len(kept.said) == 1
        is_mine = str(rank) == case[-1]
        assert ("broken on purpose" if is_mine else "another rank has stopped measuring") in kept.said[0]


def same_bits(mine, theirs):
    return mine.keys() == theirs.keys() and all(value.equal(theirs[name]) for name, value in mine.items())


@pytest.mark.parametrize("case", BARE)
def test_two_processes_train_as_they_do_without_a_monitor(together, case):
    assert all(same_bits(kept.weights, kept.bare) for kept in together[case])


SPLIT = ["healthy", "dead", "dead on rank 0", "rare", "nan"]


@pytest.fixture(scope="module")
def tensor_parallel(run_script, tmp_path_factory):
    """Two processes that have a part of each layer."""
    return trained(run_script, tmp_path_factory.mktemp("tensor"), 2, "tensor", SPLIT)


@pytest.fixture(scope="module")
def sharded(run_script, tmp_path_factory):
    """Two processes that keep a part of each weight."""
    return trained(run_script, tmp_path_factory.mktemp("fsdp"), 2, "fsdp", SPLIT)


@pytest.fixture(scope="module", params=["tensor_parallel", pytest.param("sharded", marks=needs_fsdp)])
def split(request):
    return request.getfixturevalue(request.param)


@needs_fsdp
@pytest.mark.parametrize("case", SPLIT)
def test_processes_that_keep_a_part_of_each_weight_give_the_verdicts_of_one(alone, sharded, case):
    mine, theirs = said_of(sharded[case][0]), said_of(alone[case])
    if case == "nan":  # the graph keeps no weights, so that the looks tell the layer
        mine, theirs = ([(rule, since) for _, rule, _, since, *_ in said] for said in (mine, theirs))
    # Whether a weight moves the loss is asked by a replay, which takes whole weights: what follows differs.
    assert mine[:1] == theirs[:1] if case == "dead" else mine == theirs
    assert sharded[case][0].steps == alone[case].steps


@pytest.mark.parametrize("case", SPLIT)
def test_processes_with_a_part_of_each_layer_give_the_alarms_of_one(alone, tensor_parallel, case):
    # A layer that adds up what the processes have gives no plain tensor: the one behind it is named. And without plain
    # tensors the looks tell where the NaN began, where the graph tells which layer took it.
    place = {"net.3": "net.2", "net.7": "net.6"}
    mine, theirs = (
        [(v.rule, place.get(v.module, v.module), v.since, v.batch_idx) for v in kept.verdicts if v.severity == "alarm"]
        for kept in (tensor_parallel[case][0], alone[case])
    )
    assert mine[:1] == theirs[:1] if case == "dead" else mine == theirs
    assert tensor_parallel[case][0].steps == alone[case].steps


@pytest.mark.parametrize("case", BARE)
def test_processes_that_have_parts_train_as_they_do_without_a_monitor(split, case):
    assert all(same_bits(kept.weights, kept.bare) for kept in split[case])
