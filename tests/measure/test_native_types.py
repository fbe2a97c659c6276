"""The compiled kernel on each type that it reads: the same truth, and the bins in the same read."""

import math

import numpy as np
import pytest
import torch
from oracle import assert_true, normal, row_of, rows_of_channels
from ways import ALL, by_kernel, kernel_reads, no_counts, on_cpu, statistics, without_a_compiler

from hookboard.measure import Recorder, measure_channels, plan
from hookboard.measure.histogram import as_single, bins_of
from hookboard.model.sites import Site

pytest.importorskip("hookboard.measure._native", reason="installed without a C compiler")

TYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
every_type = pytest.mark.parametrize("dtype", TYPES, ids=str)


def spoiled(dtype):
    values = normal(9001, dtype=dtype)
    values[::7], values[3::1009], values[5::2003], values[8::3001] = 0.0, math.nan, math.inf, -math.inf
    return values


VALUES = {
    "normal": lambda dtype: normal(5000, dtype=dtype),
    "rectified": lambda dtype: normal(5001, dtype=dtype).relu(),
    "far from 0": lambda dtype: normal(9000, mean=1e4, std=0.1, dtype=dtype),
    "not finite here and there": spoiled,
    "the smallest": lambda dtype: normal(4099, dtype=dtype).sign() * torch.finfo(dtype).smallest_normal / 4,
    "near the largest": lambda dtype: normal(4099, dtype=dtype).sign() * torch.finfo(dtype).max * 0.9,
    "the ends": lambda dtype: torch.tensor([torch.finfo(dtype).min, 0, *[torch.finfo(dtype).max] * 2], dtype=dtype),
    "some of them huge": lambda dtype: normal(5000, dtype=dtype).masked_fill_(normal(5000) > 2, torch.finfo(dtype).max),
}
every_value = pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)

SHAPES = {
    "(N, C)": ((300, 33), 1),
    "(N, C), fewer channels than lanes": ((500, 5), 1),
    "(N, C), one more than are worked on together": ((700, 65), 1),
    "(N, C, 2, 2)": ((40, 23, 2, 2), 1),
    "(N, C, 3, 5)": ((40, 70, 3, 5), 1),
    "(N, C, 7, 7)": ((16, 5, 7, 7), 1),
    "beyond one chunk": ((2, 3, 80, 90), 1),
    "samples": ((9, 20), 0),
    "large": ((5003, 70), 1),
    "large, narrow": ((5003, 33, 2), 1),
    "large, wide": ((5, 37, 1013), 1),
}
every_shape = pytest.mark.parametrize(("shape", "dim"), SHAPES.values(), ids=SHAPES)


def close(found, true):
    return np.allclose(np.asarray(found), np.asarray(true, dtype=np.float64), rtol=1e-7, atol=1e-14, equal_nan=True)


def bins_by_torch(values):
    return torch.bincount(bins_of(as_single(values.flatten())), minlength=len(no_counts()))


@every_type
@every_value
def test_every_statistic_equals_the_truth(values, dtype):
    assert_true(statistics(on_cpu(values(dtype))), [values(dtype)])


@every_type
@pytest.mark.parametrize("length", [1, 15, 16, 17, 4095, 4096, 4097, 8200])
def test_no_value_is_lost_at_the_borders_of_lanes_and_chunks(length, dtype):
    values = normal(length, dtype=dtype).relu()
    assert_true(statistics(on_cpu(values, counts=no_counts())), [values])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_each_number_of_16_bits_is_read_as_torch_reads_it(dtype):
    everything = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).short().view(dtype)
    counts = no_counts()
    by_kernel(everything, counts=counts)
    assert torch.equal(counts, bins_by_torch(everything))
    channels = np.concatenate([by_kernel(part.view(-1, 1), 0)[1] for part in everything.split(4096)])
    true = everything.double().numpy()
    assert np.array_equal(channels[np.isfinite(true), 1], true[np.isfinite(true)])


@every_type
@every_shape
def test_each_channel_has_the_row_of_its_values(shape, dim, dtype):
    tensor = normal(*shape, dtype=dtype)
    for each in (tensor, tensor.to(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor):
        row, channels = by_kernel(each, dim)
        assert close(channels, rows_of_channels([each], dim))
        assert close(row, row_of(each.double().numpy().ravel()))


@every_type
@every_shape
def test_channels_that_are_not_finite_have_the_row_of_the_rest(shape, dim, dtype):
    tensor = normal(*shape, dtype=dtype)
    flat = tensor.view(-1)
    flat[::7], flat[3::101], flat[5::203], flat[8::301] = 0.0, math.nan, math.inf, -math.inf
    row, channels = by_kernel(tensor, dim)
    assert close(channels, rows_of_channels([tensor], dim))
    assert close(row, row_of(tensor.double().numpy().ravel()))


@every_type
@every_value
def test_bins_counted_in_the_same_read_are_those_of_torch(values, dtype):
    values, counts = values(dtype), no_counts() + 3
    row = on_cpu(values, counts=counts)
    assert np.array_equal(row, on_cpu(values), equal_nan=True)
    slow = no_counts()
    without_a_compiler(values, counts=slow)
    is_shown = (torch.arange(len(slow)) & 0xFF0) != 0xFF0  # torch has two ways to make NaN of float16 one of float32
    assert torch.equal((counts - 3)[is_shown], slow[is_shown])
    assert (counts - 3).sum() == values.numel()


def test_float64_lies_in_the_bin_whose_edges_hold_it():
    edges = torch.arange(1 << 12, dtype=torch.int32).mul(1 << 19).view(torch.float32).double()
    edges = edges[edges.isfinite() & (edges > 0)]
    below = torch.nextafter(edges, torch.zeros_like(edges))
    for values, bin_of_first in ((edges, 1), (below, 0)):
        counts = no_counts()
        by_kernel(values, counts=counts)
        assert counts[bin_of_first : bin_of_first + len(edges)].tolist() == [1] * len(edges)


@pytest.fixture
def as_many_threads_as_before():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@every_type
@every_shape
@pytest.mark.usefixtures("as_many_threads_as_before")
def test_bins_counted_in_the_read_of_the_channels_leave_any_number_of_threads_the_same_rows(shape, dim, dtype):
    tensor = normal(*shape, dtype=dtype)
    alone, channels_alone = by_kernel(tensor, dim)
    plain, bins = by_kernel(tensor)[0], bins_by_torch(tensor)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        counts = no_counts()
        row, channels = by_kernel(tensor, dim, counts=counts)
        assert (row, channels.tobytes()) == (alone, channels_alone.tobytes())
        assert torch.equal(counts, bins)
        assert by_kernel(tensor, counts=counts)[0] == plain
        assert torch.equal(counts, 2 * bins)


def test_subnormal_numbers_of_float16_are_read_where_torch_flushes_those_of_float32():
    values = torch.arange(-1023, 1024, dtype=torch.float64).mul(2.0**-24).half()
    torch.set_flush_denormal(True)
    try:
        row = by_kernel(values)[0]
    finally:
        torch.set_flush_denormal(False)
    assert close(row, row_of(values.double().numpy()))


@every_type
def test_the_difference_of_two_tensors_is_taken_in_float32_at_least(dtype):
    tensor, minus = normal(6000, dtype=dtype), normal(6000, mean=0.5, dtype=dtype)
    assert kernel_reads(tensor, None, minus)
    row, _ = by_kernel(tensor, minus=minus)
    wide = torch.promote_types(dtype, torch.float32)
    assert close(row, row_of((tensor.to(wide) - minus.to(wide)).double().numpy()))


BEYOND = {
    "1e300": lambda: normal(900, dtype=torch.float64).view(30, 30) * 1e300,
    "1e-300": lambda: normal(900, dtype=torch.float64).view(30, 30) * 1e-300,
    "one channel of 1e300, not finite": lambda: (
        normal(30, 30, dtype=torch.float64) * torch.tensor([1e300, math.nan, math.inf] + [1.0] * 27)
    ),
}


@pytest.mark.parametrize("values", BEYOND.values(), ids=BEYOND)
def test_squares_beyond_float64_are_measured_truly_and_counted_once(values):
    tensor, counts = values().double(), no_counts()
    row, channels = measure_channels(tensor, 1, ALL, counts=counts)
    assert np.allclose(channels, rows_of_channels([tensor], 1), rtol=1e-7, atol=0)
    assert np.allclose(row, np.array(row_of(tensor.numpy().ravel()), dtype=np.float64), rtol=1e-7, atol=0)
    assert torch.equal(counts, bins_by_torch(tensor))
    counts.zero_()
    assert_true(statistics(on_cpu(tensor, counts=counts)), [tensor])
    assert torch.equal(counts, bins_by_torch(tensor))


def test_an_update_whose_squares_are_beyond_float64_is_measured_truly():
    huge, minus = normal(70, dtype=torch.float64) * 1e300, normal(70, mean=1.0, dtype=torch.float64) * 1e300
    recorder = Recorder(plan(["mean", "std", "max"]), torch.device("cpu"))
    recorder.observe_all([(Site("a", "parameter_update"), huge, minus)])
    (reading,) = recorder.flush().values()
    assert_true(reading.statistics, [huge - minus])
