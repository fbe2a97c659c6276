"""The ways on which the door measures, all on tensors of the CPU."""

import pytest
import torch

from hookboard.measure import BINS, FORMULAS, WIDTH, Moments, histogram, measure, native, plan
from hookboard.measure.door import row_on_device
from hookboard.measure.values import values_of

ALL = plan(list(FORMULAS))


def on_cpu(tensor, plan=ALL, **options):
    return measure(tensor, plan, **options)


def without_a_compiler(tensor, plan=ALL, **options):
    """The way of an installation that has no compiled kernel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "_native", None)
        return measure(tensor, plan, **options)


def on_device(tensor, plan=ALL, counts=None, moments_only=False):
    """The way of an accelerator, which is the same code on any device."""
    return row_on_device(tensor, values_of(tensor, may_wait=False), plan, counts, moments_only)


WAYS = [on_cpu, without_a_compiler, on_device]
every_way = pytest.mark.parametrize("measured", WAYS)


def as_row(row):
    return torch.as_tensor(row, dtype=torch.float64)


def statistics(row, plan=ALL):
    numbers = as_row(row).tolist()
    return plan.values(Moments(*numbers[:WIDTH]), numbers[WIDTH:])


def no_counts():
    return torch.zeros(BINS, dtype=torch.long)


def histogram_of(measured, tensor):
    """The histogram of one tensor."""
    counts = no_counts()
    moments = Moments(*as_row(measured(tensor, counts=counts)).tolist())
    return histogram(counts.numpy(), moments.min, moments.max)
