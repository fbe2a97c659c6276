"""The calls that `python -m benchmarks.walks` counts."""

import pytest
from benchmarks.walks import CADENCE, STEPS, WARM_UP, steps_of

from hookboard import ActivationLogger

pytestmark = pytest.mark.trains


def test_the_calls_of_each_step_are_counted_and_those_of_a_due_step_are_more():
    steps = steps_of(ActivationLogger("net.0", every_n_steps=CADENCE))
    assert len(steps) == STEPS - WARM_UP - 1
    due = sum(1 for step in range(WARM_UP, STEPS - 1) if (step + 1) % CADENCE == 0)
    fewest, others = len(steps[0]), [len(calls) for calls in steps]
    assert sum(count > 2 * fewest for count in others) in range(due, 2 * due + 1)  # some is done a step later
    assert all("hookboard" in file for file, _ in steps[-1])
