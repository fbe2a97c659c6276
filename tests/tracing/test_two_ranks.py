"""What is read of the first step on two ranks, and that it leaves no trace there."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
import test_loops
import two_ranks_looped
from two_ranks import CASES

from hookboard import HealthMonitor
from hookboard.tracing.questions import STEP

pytestmark = pytest.mark.spawns

SCRIPT = Path(__file__).with_name("two_ranks.py")
LOOPED = Path(__file__).with_name("two_ranks_looped.py")


def trained(run_script, folder, strategy, cases):
    done = run_script(SCRIPT, folder, strategy, *cases, ranks=2)
    assert done.returncode == 0, done.stderr
    return {case: [torch.load(folder / f"{case}.{rank}", weights_only=False) for rank in (0, 1)] for case in cases}


@pytest.fixture(scope="module")
def together(run_script, tmp_path_factory):
    return trained(run_script, tmp_path_factory.mktemp("ddp"), "ddp", CASES)


def said(texts):
    return [text for text in texts if "the training step was not read" in text]


@pytest.mark.parametrize("case", CASES)
def test_two_processes_train_as_they_do_without_a_monitor(together, case):
    for bare, watched, _, _ in together[case]:
        assert all(one.equal(other) for one, other in zip(bare[0], watched[0], strict=True))
        assert bare[1].equal(watched[1])


@pytest.mark.parametrize("case", [case for case in CASES if case != "healthy"])
def test_a_fault_in_the_step_of_two_processes_is_found(together, case):
    verdict = together[case][0][2][0]
    assert (verdict.rule, verdict.module, verdict.since) == ("loss_input", "net.4", 0)
    assert not said(together[case][0][3])


def test_nothing_is_found_in_a_healthy_step_of_two_processes(together):
    assert STEP.isdisjoint(verdict.rule for verdict in together["healthy"][0][2])
    assert not said(together["healthy"][0][3])


needs_fsdp = pytest.mark.skipif(
    not hasattr(torch.cpu.Stream, "record_event"), reason="the FSDP2 of this torch needs a device"
)


@pytest.mark.parametrize(
    "strategy", ["ddp_find_unused_parameters_true", "static", pytest.param("fsdp", marks=needs_fsdp)]
)
def test_the_step_is_read_and_the_same_however_the_model_is_wrapped(run_script, tmp_path, strategy):
    trainings = trained(run_script, tmp_path, strategy, ["healthy", "softmax"])
    for case, found in [("healthy", False), ("softmax", True)]:
        for bare, watched, _, texts in trainings[case]:
            assert all(one.equal(other) for one, other in zip(bare[0], watched[0], strict=True))
            assert not said(texts)
        assert ("loss_input" in {verdict.rule for verdict in trainings[case][0][2]}) is found


LOOPS = ["ddp", "fabric", "accelerate", pytest.param("fsdp", marks=needs_fsdp)]


NOT_ASKED = {"future_leak"}
"""The graph has custom functions of FSDP2, or of DDP where it looks for unused parameters."""


@pytest.fixture(scope="module", params=LOOPS)
def loop(request):
    if request.param == "accelerate":
        pytest.importorskip("accelerate")
    return request.param


@pytest.fixture(scope="module")
def looped(loop, run_script, tmp_path_factory):
    """What came of the faults in a loop on two ranks: by case, of each rank."""
    folder = tmp_path_factory.mktemp(loop)
    done = run_script(LOOPED, folder, loop, ranks=2)
    assert done.returncode == 0, done.stderr
    return {
        case: [torch.load(folder / f"{loop}.{case}.{rank}", weights_only=False) for rank in (0, 1)]
        for case in two_ranks_looped.CASES
    }


def marks(verdicts):
    """All alarms, and the notes on the step."""
    kept = [verdict for verdict in verdicts if verdict.severity == "alarm" or verdict.rule in STEP]
    return {(verdict.severity, verdict.rule, verdict.module) for verdict in kept}


def test_the_alarms_on_two_ranks_are_those_of_one_process(loop, looped, tmp_path):
    alone = {"accelerate": test_loops.accelerated}.get(loop, test_loops.bare)
    for case, ((_, verdicts, texts), _) in looped.items():
        kind, _, *data = test_loops.FAULTS[case]
        monitor = HealthMonitor(every_n_steps=1)
        test_loops.trained(alone, tmp_path, kind, *data, monitor)
        expected = {mark for mark in marks(monitor.verdicts) if mark[1] not in NOT_ASKED}
        assert marks(verdicts) == expected, case
        assert not said(texts)


def test_a_loop_on_two_ranks_trains_as_it_does_without_a_monitor(looped):
    assert all(is_same for ranks in looped.values() for is_same, _, _ in ranks)
