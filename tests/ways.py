"""The ways on which the door measures, all on tensors of the CPU."""

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from hookboard.measure import BINS, FORMULAS, WIDTH, Moments, can_subtract, form_of, histograms, measure, native, plan
from hookboard.measure.measuring import row_on_device
from hookboard.measure.values import values_of

ALL = plan(list(FORMULAS))


class Raises(TorchFunctionMode):
    """In place of what Python asks of a tensor, as a signal may come under any mode."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def __torch_function__(self, function, types, args=(), kwargs=None):
        raise self.error


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


def by_kernel(tensor, dim=None, counts=None, minus=None):
    """What the compiled kernel gives of one tensor: its row, and those of its channels."""
    return native.read(tensor, form_of(tensor, dim), with_abs_mean=True, counts=counts, minus=minus)


def kernel_reads(tensor, dim=None, minus=None):
    """Whether the kernel takes a tensor, the dimension of its channels, and what is subtracted from it."""
    form = form_of(tensor, dim)
    return form is not None and (minus is None or can_subtract(minus, form))


WAYS = [on_cpu, without_a_compiler, on_device]
every_way = pytest.mark.parametrize("measured", WAYS)


def as_row(row):
    return torch.as_tensor(row, dtype=torch.float64)


def statistics(row, plan=ALL):
    numbers = as_row(row).tolist()
    return plan.values(Moments(*numbers[:WIDTH]), numbers[WIDTH:])


def no_counts():
    return torch.zeros(BINS, dtype=torch.long)


def histogram(counts, low, high):
    """The histogram of one site from its counts."""
    (found,) = histograms([counts], np.array([low]), np.array([high]))
    return found


def histogram_of(measured, tensor):
    """The histogram of one tensor."""
    counts = no_counts()
    moments = Moments(*as_row(measured(tensor, counts=counts)).tolist())
    return histogram(counts.numpy(), moments.min, moments.max)
