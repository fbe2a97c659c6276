"""What is read of the first step on two ranks, and that it leaves no trace there."""

import importlib.util
from pathlib import Path

import pytest
import torch
from ranks.strategies import HAS_FSDP
from tracing import test_loops
from tracing.two_ranks import LOOPS

from hookboard import HealthMonitor
from hookboard.tracing.questions import STEP

pytestmark = pytest.mark.spawns

NOT_ASKED = {"future_leak"}
"""The graph has custom functions of FSDP2, or of DDP where it looks for unused parameters."""

JOBS = [
    f"{loop}:{case}"
    for loop in LOOPS
    for case in (["Healthy", "SoftmaxBeforeCrossEntropy"] if "lightning" in loop else test_loops.OF_OTHERS)
    if (HAS_FSDP or "fsdp" not in loop) and (loop != "accelerate" or importlib.util.find_spec("accelerate"))
]


@pytest.fixture(scope="module")
def trained(run_script, tmp_path_factory):
    """What came of each job: of each rank, whether the training was the same, the verdicts, and what was said."""
    folder = tmp_path_factory.mktemp("two_ranks")
    done = run_script(Path(__file__).with_name("two_ranks.py"), folder, *JOBS, ranks=2)
    assert done.returncode == 0, done.stderr
    return {job: [torch.load(folder / f"{job}.{rank}", weights_only=False) for rank in (0, 1)] for job in JOBS}


def marks(verdicts):
    """All alarms, and the notes on the step."""
    kept = [verdict for verdict in verdicts if verdict.severity == "alarm" or verdict.rule in STEP]
    return {(verdict.severity, verdict.rule, verdict.module) for verdict in kept}


@pytest.mark.parametrize("job", JOBS)
def test_the_alarms_on_two_ranks_are_those_of_one_process(job, trained, tmp_path):
    loop, case = job.split(":")
    alone = {"accelerate": test_loops.accelerated, "lightning": test_loops.lightning}.get(
        loop.split()[0], test_loops.bare
    )
    kind, _, *data = test_loops.FAULTS[case]
    monitor = HealthMonitor(every_n_steps=1)
    test_loops.trained(alone, tmp_path, kind, *data, monitor)
    _, verdicts, texts = trained[job][0]
    assert marks(verdicts) == {mark for mark in marks(monitor.verdicts) if mark[1] not in NOT_ASKED}
    assert not [text for text in texts if "the training step was not inspected" in text]


@pytest.mark.parametrize("job", JOBS)
def test_two_ranks_train_as_they_do_without_a_monitor(job, trained):
    assert all(is_same for is_same, _, _ in trained[job])
