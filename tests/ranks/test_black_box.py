"""A fault on one of two ranks: nobody waits for ever, and the place is known on all ranks that merge their events."""

import pytest

from hookboard.callbacks.all_ranks import first_events
from hookboard.health.rules.numerics import Nonfinite

pytestmark = pytest.mark.spawns

FAULTS = ["forward", "backward", "batch", "collective"]


@pytest.fixture(scope="module")
def saved(saved_by):
    return saved_by("spoil", FAULTS)


@pytest.mark.parametrize(
    ("fault", "during", "module"),
    [("forward", "forward", ""), ("backward", "backward", "net.1"), ("batch", "batch", "net.0")],
)
def test_the_rank_with_the_fault_names_the_place(saved, fault, during, module):
    for _, _, first in saved[fault]:
        assert (first.during, first.module, first.step, first.batch_idx) == (during, module, 2, 2)


def test_a_gradient_that_came_from_another_rank_is_said_to(saved):
    _, (event, *_), _ = saved["backward"][0]
    assert not event.is_located
    assert "another rank" in event.evidence


@pytest.mark.parametrize("fault", FAULTS)
def test_the_run_is_the_same_with_and_without(saved, fault):
    assert all(is_same for is_same, _, _ in saved[fault])


def test_an_event_of_a_batch_names_the_rank_that_had_it():
    def event(during):
        return Nonfinite("fc", during, 3, 3, "fc gave 2 NaN.", "")

    said = [first_events([[], [event(during)]])[0].evidence for during in ("forward", "optimizer")]
    assert said == ["Rank 1: fc gave 2 NaN.", "fc gave 2 NaN."]
