"""The ways on which the door measures, all on tensors of the CPU."""

import functools

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from hookboard.measure import BINS, FORMULAS, WIDTH, Moments, by_torch, form_of, histograms, measure, native, plan
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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "_native", None)
        patch.setattr(by_torch, "may_wait_for", lambda tensor: False)
        patch.setattr("hookboard.measure.measuring.values_of", functools.partial(values_of, may_wait=False))
        return measure(tensor, plan, counts=counts, moments_only=moments_only)


def by_kernel(tensor, dim=None, counts=None, minus=None):
    """What the compiled kernel gives of one tensor: its row, and those of its channels."""
    return native.read(tensor, form_of(tensor, dim), with_abs_mean=True, counts=counts, minus=minus)


def kernel_reads(tensor, dim=None, minus=None):
    """Whether the kernel takes a tensor, the dimension of its channels, and what is subtracted from it."""
    return is_read(tensor, form_of(tensor, dim), minus)


def is_read(tensor, form, minus=None):
    """Whether the kernel takes a tensor in a form, and what is subtracted from it."""
    return form is not None and native.read(tensor, form, with_abs_mean=False, minus=minus) is not None


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
