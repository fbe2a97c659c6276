"""Devices without float64, such as Apple's MPS: what is measured is copied to the host.

There is no such machine here. Tensors pretend to be on one: they say that they are on `mps`, and raise what MPS raises
where a float64 tensor would come to be there, or where they are mixed with tensors of the host.
"""

import math
from types import SimpleNamespace

import pytest
import torch
from oracle import assert_true
from torch import Tensor, nn

from hookboard.callbacks.loss_meter import LossMeter, summed
from hookboard.measure.statistics import plan
from hookboard.measure.table import Table
from hookboard.model.sites import Site
from hookboard.tracing.black_box import all_finite

MPS = torch.device("mps")
DEVICE = Tensor.device.__get__
IS_CPU = Tensor.is_cpu.__get__


class OnMPS(Tensor):
    """A tensor in the memory of the host that behaves as if it were on MPS."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function == DEVICE:
            return MPS
        if function == IS_CPU:
            return False
        if function == Tensor.cpu or (function == Tensor.to and "cpu" in map(str, args)):
            with torch._C.DisableTorchFunctionSubclass():
                return args[0].detach().as_subclass(Tensor).clone()
        given = [each for each in args if isinstance(each, Tensor)]
        if any(each.dim() for each in given if not isinstance(each, OnMPS)):
            raise RuntimeError("Expected all tensors to be on the same device, but found at least two devices")
        args = tuple("cpu" if each == MPS else each for each in args) if function == Tensor.to else args
        made = super().__torch_function__(function, types, args, kwargs or {})
        if isinstance(made, OnMPS):
            with torch._C.DisableTorchFunctionSubclass():
                if made.dtype is torch.float64:
                    raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
        return made


def on_mps(tensor):
    return tensor.as_subclass(OnMPS)


def measured(role, *tensors, statistics=("mean", "std", "l2"), **options):
    table, site = Table(plan(statistics), MPS, **options), Site("net", role)
    for tensor in tensors:
        table.open(site)(on_mps(tensor))
    return table.send(torch.zeros(1))()[site]


def test_statistics_are_those_of_all_values():
    parts = [torch.randn(5, 3), torch.randn(2, 3)]
    assert_true(measured("output", *parts).statistics, parts)


def test_histograms_and_channels_are_measured_too():
    tensor = torch.randn(64, 3)
    reading = measured("output", tensor, histogram=True, channels=lambda site, tensor: 1)
    assert reading.histogram.counts.sum() == tensor.numel()
    assert len(reading.channels) == 3


def test_gradients_are_divided_by_a_scale_on_the_device():
    table, site = Table(plan("mean"), MPS), Site("net", "grad_output")
    table.scale = on_mps(torch.tensor(4.0))
    table.open(site)(on_mps(torch.tensor([8.0, 16.0])))
    assert table.send()()[site].statistics["mean"] == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_update_of_a_weight_is_measured(dtype):
    before, after = torch.ones(4, dtype=dtype), torch.full((4,), 1.5, dtype=dtype)
    table, site = Table(plan("l2"), MPS), Site("weight", "parameter_update")
    table.observe_all([(site, on_mps(nn.Parameter(after)), on_mps(before))])
    assert table.send()()[site].statistics["l2"] == pytest.approx(1)


def test_the_loss_is_read():
    meter = LossMeter()
    meter.add(0, 0, on_mps(torch.tensor(1.5)))
    meter.add(1, 1, on_mps(torch.tensor(2.5)))
    parts, numbers = meter.take()
    table = Table(plan("mean"), MPS)
    assert [loss.value for loss in summed(parts, table.send(along=numbers)().along)] == [1.5, 2.5]


@pytest.mark.parametrize(("value", "is_finite"), [(3e38, True), (math.inf, False), (math.nan, False)])
def test_gradients_that_are_not_finite_are_seen(value, is_finite):
    layer = nn.Linear(2, 2)
    gradients = [SimpleNamespace(grad=on_mps(torch.full_like(parameter, value))) for parameter in layer.parameters()]
    assert all_finite(gradients) is is_finite
