"""The row of each channel is that of its values alone, on every way and for every layout."""

import math

import numpy as np
import pytest
import torch
from oracle import normal, row_of
from oracle import rows_of_channels as true_rows
from torch import nn
from ways import ALL, no_counts

from hookboard.measure import FIELDS, WIDTH, Statistic, measure, measure_channels, native, plan
from hookboard.measure.by_torch import rows_of_channels


def on_cpu(tensor, dim):
    return measure_channels(tensor, dim, ALL)


def by_torch(tensor, dim):
    """The way of an accelerator."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "_native", None)
        return measure_channels(tensor, dim, ALL)


every_way = pytest.mark.parametrize("measured", [on_cpu, by_torch])


def assert_rows(measured, true, rel=1e-7):
    """Each column equals the truth; a mean that cancels, to the precision of the numbers that went into it."""
    measured = np.asarray(measured, dtype=np.float64)
    assert measured.shape == true.shape
    size = np.maximum(np.abs(true[:, 8:9]), np.abs(true[:, 9:10]))
    rounding = np.zeros_like(true)
    rounding[:, 1:2] = 1e-14 * np.where(np.isfinite(size), size, 0)
    with np.errstate(invalid="ignore"):  # of infinities
        close = (measured == true) | (np.abs(measured - true) <= rel * np.abs(true) + rounding)
    assert close.all(), [(FIELDS[j], i, measured[i, j], true[i, j]) for i, j in np.argwhere(~close)[:5]]


LAST = torch.channels_last
LAYOUTS = {
    "(N, C)": (normal(300, 33), 1),
    "(N, C), fewer channels than lanes": (normal(500, 5), 1),
    "(N, C), as many channels as lanes": (normal(70, 16), 1),
    "(N, C), one more channel": (normal(70, 17), 1),
    "(N, C), one channel": (normal(70, 1), 1),
    "(N, C), rows beyond one chunk": (normal(9000, 18), 1),
    "(N, T, C)": (normal(3, 5, 20), 2),
    "(N, T, C), tokens": (normal(3, 5, 20), 1),
    "(N, C, H, W)": (normal(2, 6, 9, 7), 1),
    "(N, C, H, W), 1 x 1": (normal(2, 60, 1, 1), 1),
    "(N, C, H, W), 1 x 2": (normal(2, 23, 1, 2), 1),
    "(N, C, H, W), 2 x 2": (normal(16, 23, 2, 2), 1),
    "(N, C, H, W), 1 x 7": (normal(16, 23, 1, 7), 1),
    "(N, C, H, W), 4 x 4": (normal(16, 23, 4, 4), 1),
    "(N, C, H, W), 5 x 7, many": (normal(300, 5, 5, 7), 1),
    "(N, C, H, W), images beyond one chunk": (normal(2, 3, 80, 90), 1),
    "(N, C, H, W), samples": (normal(2, 3, 4, 5), 0),
    "(N, C, H, W), columns": (normal(2, 3, 4, 5), 3),
    "channels last": (normal(4, 19, 5, 6).to(memory_format=LAST), 1),
    "channels last, samples": (normal(4, 19, 5, 6).to(memory_format=LAST), 0),
    "channels last 3d": (normal(2, 3, 4, 5, 6).to(memory_format=torch.channels_last_3d), 1),
    "a weight": (nn.Parameter(normal(40, 70)).detach(), 0),
    "a vector": (normal(50), 0),
    "transposed": (normal(30, 40).T, 1),
    "permuted": (normal(5, 3, 20).permute(1, 0, 2), 2),
    "a slice of the channels": (normal(5, 3, 40)[..., 7:27], 2),
    "expanded channels": (normal(20, 1).expand(20, 7), 1),
    "an odd place in memory": (normal(20 * 7 + 1)[1:].view(20, 7), 1),
}


@every_way
@pytest.mark.parametrize(("tensor", "dim"), LAYOUTS.values(), ids=LAYOUTS)
def test_every_layout_gives_the_row_of_each_channel(measured, tensor, dim):
    _, rows = measured(tensor, dim)
    assert rows.dtype == np.float64
    assert_rows(rows, true_rows([tensor], dim))


@every_way
@pytest.mark.parametrize(("tensor", "dim"), LAYOUTS.values(), ids=LAYOUTS)
def test_the_row_of_the_tensor_is_the_one_without_channels(measured, tensor, dim):
    row, _ = measured(tensor, dim)
    # A device measures float32 in float32, in which the mean of a channel is another number than that of the whole.
    assert_rows([row], np.array([measure(tensor, ALL)]), rel=1e-12 if measured is on_cpu else 1e-7)


SHAPES = [(200, 19), (200, 3), (30, 19, 5), (30, 4, 40), (1, 3, 9000)]


def spoiled(shape, *values):
    """Normal numbers with some others among them, in some channels."""
    tensor = normal(*shape)
    flat = tensor.view(-1)
    for index, value in enumerate(values):
        flat[index * 37 :: 101 + index] = value
    return tensor


MANY_VALUES = {
    "NaN and infinities": lambda shape: spoiled(shape, math.nan, math.inf, -math.inf),
    "NaN in one channel": lambda shape: normal(*shape).index_fill_(1, torch.tensor([1]), math.nan),
    "large mean, small deviation": lambda shape: normal(*shape, mean=1e4, std=1e-2),
    "one channel far away": lambda shape: normal(*shape).index_add_(
        1, torch.tensor([2]), torch.full((shape[0], 1, *shape[2:]), 1e5)
    ),
    "channels of different size": lambda shape: (
        normal(*shape) * torch.logspace(-30, 30, shape[1]).view(-1, *[1] * (len(shape) - 2))
    ),
    "all equal": lambda shape: torch.full(shape, 0.1),
    "rectified": lambda shape: normal(*shape).relu(),
    "3e38 and infinities": lambda shape: spoiled(shape, 3e38, -3e38, math.inf),
    "subnormal": lambda shape: normal(*shape, std=1e-41),
    "bfloat16": lambda shape: normal(*shape, dtype=torch.bfloat16),
    "float8": lambda shape: normal(*shape).to(torch.float8_e4m3fn),
    "float64": lambda shape: normal(*shape, dtype=torch.float64),
    "float64 at 1e200": lambda shape: normal(*shape, dtype=torch.float64) * 1e200,
    "large int64": lambda shape: (normal(*shape) * 1e17).long(),
    "bool": lambda shape: normal(*shape) > 0,
}


@every_way
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("values", MANY_VALUES.values(), ids=MANY_VALUES)
def test_every_value_is_measured_truly(measured, values, shape):
    tensor = values(shape)
    row, rows = measured(tensor, 1)
    assert_rows(rows, true_rows([tensor], 1))
    assert_rows([row], np.array([row_of(tensor.double().numpy().ravel())], dtype=np.float64))


@every_way
@pytest.mark.parametrize("shape", [(0, 7), (3, 7, 0), (0, 7, 4, 4)], ids=str)
def test_an_empty_tensor_gives_rows_of_nothing(measured, shape):
    row, rows = measured(torch.empty(shape), 1)
    assert_rows(rows, np.array([row_of(np.zeros(0))] * 7))
    assert list(row) == row_of(np.zeros(0))


ODD = {
    "no such dimension": (normal(3, 4), 2),
    "a number": (torch.tensor(1.0), 0),
    "no channels": (torch.empty(3, 0), 1),
    "complex": (torch.complex(normal(3, 4), normal(3, 4)), 1),
    "sparse": (normal(3, 4).relu().to_sparse(), 1),
    "a subclass": (normal(3, 4).as_subclass(type("Sub", (torch.Tensor,), {})), 1),
    "mkldnn": (normal(3, 4).to_mkldnn(), 1),
}


@pytest.mark.parametrize(("tensor", "dim"), ODD.values(), ids=ODD)
def test_an_odd_tensor_gives_its_plain_row_alone(tensor, dim):
    row, rows = measure_channels(tensor, dim, ALL)
    assert rows is None
    assert row == measure(tensor, ALL)


def test_channels_of_a_number_negated_when_read_have_its_sign():
    tensor = torch.complex(normal(9, 20), normal(9, 20)).conj().imag
    assert tensor.is_neg()
    _, rows = measure_channels(tensor, 1, ALL)
    assert_rows(rows, true_rows([tensor], 1))


@pytest.mark.parametrize("scale", [None, torch.tensor(2.0)], ids=["plain", "scaled"])
def test_a_tensor_whose_memory_was_freed_is_refused(scale):
    tensor = normal(3, 4)
    tensor.untyped_storage().resize_(0)
    said = ""
    try:
        measure_channels(tensor, 1, ALL, scale=scale)
    except Exception as error:  # of any other one pytest would print the tensor, and read freed memory for it
        said = repr(error)
    assert said == "TypeError('its memory has been freed')"


@pytest.mark.parametrize("tensor", [normal(6, 5), normal(6, 5, dtype=torch.float16)], ids=["float32", "float16"])
def test_bins_and_statistics_of_the_user_are_those_of_the_whole_tensor(tensor):
    both = plan(["mean", Statistic("peak", lambda x: x.max(), merge="max")])
    bins, plain_bins = no_counts(), no_counts()
    row, _ = measure_channels(tensor, 1, both, counts=bins)
    plain = measure(tensor, both, counts=plain_bins)
    assert row[WIDTH:] == plain[WIDTH:] == [tensor.max()]
    assert (bins == plain_bins).all()
    assert bins.sum() == 30


def test_the_blocks_of_a_large_tensor_on_a_device_merge_to_the_truth(monkeypatch):
    monkeypatch.setattr("hookboard.measure.by_torch.BLOCK", 100)
    tensor = spoiled((30, 19, 5), math.nan, 1e5)
    assert_rows(rows_of_channels(tensor, 1, ALL.wanted), true_rows([tensor], 1))


def test_the_host_reads_nothing_back_on_the_way_of_a_device():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Forbid(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            assert function is not torch.ops.aten._local_scalar_dense.default, "the host waits for the device"
            return function(*args, **(kwargs or {}))

    with Forbid():
        rows_of_channels(spoiled((30, 19, 5), math.nan), 1, ALL.wanted)
