"""Where a rank is lost, training goes on without what is measured, and ends as it would without callbacks."""

from pathlib import Path

import pytest
import torch
from ranks.left import AT, EVERY, PATIENCE, STEPS
from toys import scalars

pytestmark = pytest.mark.spawns

LOST = ["raises", "dies", "stuck"]
STARTS = [["asked", "broken", "shorter", "raises"], ["dies"], ["stuck"]]
"""Which cases have the same processes: of some, one does not come to the end."""

TAG = "activation_mean/net.0"


@pytest.fixture(scope="module")
def left(run_script, tmp_path_factory):
    """What makes a case: what has happened to rank 0, and the folder with its log and with what happened to rank 1."""
    folder = tmp_path_factory.mktemp("left")

    def left(case):
        if not (folder / case).exists():
            (cases,) = (cases for cases in STARTS if case in cases)
            done = run_script(Path(__file__).with_name("left.py"), folder, *cases, ranks=2)
            assert done.returncode == 0, done.stderr
        return torch.load(folder / case / "left.0"), folder / case

    return left


@pytest.mark.parametrize("case", LOST)
def test_a_step_waits_for_a_lost_rank_once_and_training_ends_soon(left, case):
    kept, _ = left(case)
    assert kept["steps"] == STEPS
    assert kept["after"] < 5
    assert kept["longest"] < (2 * PATIENCE + 1 if case == "stuck" else 2)  # once for each callback


def test_one_rank_alone_may_be_asked_for_its_readings_while_the_others_wait_for_its_gradients(left):
    kept, folder = left("asked")
    assert (kept["said"], kept["steps"]) == ([], STEPS)
    assert kept["found"][-1] > 0
    assert list(scalars(folder)[TAG]) == list(range(EVERY - 1, STEPS, EVERY))


@pytest.mark.parametrize("case", LOST)
def test_a_rank_that_is_lost_is_said_once_by_each_callback_and_what_was_logged_is_there(left, case):
    kept, folder = left(case)
    lost = "has not answered for" if case == "stuck" else "another rank has stopped measuring or has exited"
    assert len(kept["said"]) == 2
    assert all(lost in text for text in kept["said"])
    assert {text.split()[1] for text in kept["said"]} == {"ActivationLogger", "HealthMonitor"}
    # Looks that were still to be merged when a rank died are lost with it.
    logged = list(scalars(folder).get(TAG, []))
    before = list(range(EVERY - 1, AT, EVERY))
    assert logged == (before[: len(logged)] if case == "dies" else before)


@pytest.mark.parametrize("case", ["broken", "shorter"])
def test_ranks_whose_looks_come_apart_go_on_without_them_and_say_so_once(left, case):
    kept, folder = left(case)
    other = torch.load(folder / "left.1")
    assert kept["steps"] == (2 * STEPS if case == "shorter" else STEPS)
    assert other["steps"] == (2 * STEPS - 4 if case == "shorter" else STEPS)
    for said in (kept["said"], other["said"]):
        owners = [text.split()[1] for text in said]
        assert "HealthMonitor" in owners
        assert len(owners) == len({*owners})
