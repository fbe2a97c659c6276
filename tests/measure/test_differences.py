"""What the compiled kernel reads in one go beside whole tensors: slices with gaps between them, and differences."""

import math

import numpy as np
import pytest
import torch
from oracle import normal, row_of, rows_of_channels
from ways import by_kernel, kernel_reads, no_counts

from hookboard.measure import BINS
from hookboard.measure.histogram import bins_of

pytest.importorskip("hookboard.measure._native", reason="installed without a C compiler")


def with_holes(*shape):
    tensor = normal(*shape)
    tensor.view(-1)[::7] = 0.0
    tensor.view(-1)[3], tensor.view(-1)[11], tensor.view(-1)[-2] = math.nan, math.inf, -math.inf
    return tensor


TENSORS = {
    "a vector": (normal(50), None),
    "larger than a chunk": (normal(5000), None),
    "not finite here and there": (with_holes(30, 40), 0),
    "units in the first dimension": (normal(70, 3, 3, 3), 0),
    "units in the last dimension": (normal(90, 17), -1),
    "every third unit, wide": (normal(100, 300)[::3], 0),
    "every third unit, narrow": (normal(100, 5)[::3], 0),
    "every third unit, without its channels": (normal(100, 3, 7)[::3], None),
    "every third unit, not finite": (with_holes(100, 9)[::2], 0),
    "a unit larger than a chunk": (normal(6, 5000)[::2], 0),
    "in any order": (normal(3, 4, 5, 6).permute(2, 0, 3, 1), 2),
    "in any order, without its channels": (normal(3, 4, 5, 6).permute(2, 0, 3, 1), None),
}


def close(measured, true):
    return np.allclose(np.asarray(measured), np.asarray(true), rtol=1e-7, atol=1e-14, equal_nan=True)


@pytest.mark.parametrize(("tensor", "dim"), TENSORS.values(), ids=TENSORS)
def test_the_row_of_a_tensor_is_that_of_its_values(tensor, dim):
    assert kernel_reads(tensor, dim)
    row, channels = by_kernel(tensor, dim)
    assert close(row, np.array(row_of(tensor.reshape(-1).double().numpy()), dtype=np.float64))
    assert (channels is None) == (dim is None)
    if dim is not None:
        assert close(channels, rows_of_channels([tensor], dim))


@pytest.mark.parametrize("tensor", [t for t, _ in TENSORS.values()], ids=TENSORS)
def test_a_difference_is_that_of_float32(tensor):
    minus = torch.empty_like(tensor).copy_(normal(*tensor.shape, mean=0.5))  # in the same order
    assert kernel_reads(tensor, None, minus)
    counts = no_counts()
    row, _ = by_kernel(tensor, counts=counts, minus=minus)
    assert torch.equal(counts, torch.bincount(bins_of((tensor - minus).flatten()), minlength=BINS))
    assert close(row, np.array(row_of((tensor - minus).reshape(-1).double().numpy()), dtype=np.float64))


def test_equal_tensors_differ_by_nothing():
    tensor = normal(100, 9)[::2]
    row, _ = by_kernel(tensor, minus=tensor.clone())
    assert row[:5] == [450.0, 0.0, 0.0, 0.0, 450.0]


def freed(tensor):
    tensor.untyped_storage().resize_(0)
    return tensor


ALONE = {
    "gaps in a unit": (normal(4, 6)[:, ::2], 0, None),
    "expanded": (normal(1, 3).expand(4, 3), 0, None),
    "turned back to front by strides that overlap": (torch.as_strided(normal(9), (3, 3), (2, 1)), 0, None),
    "freed": (freed(normal(4, 4)), None, None),
    "units that are not the first dimension of a slice": (normal(8, 5)[::2], 1, None),
    "another order in what is subtracted": (normal(3, 4).t(), None, normal(4, 3)),
    "another shape to subtract": (normal(3, 4), None, normal(4, 3)),
    "another type to subtract": (normal(3), None, normal(3, dtype=torch.float64)),
    "channels of a difference": (normal(3, 4), 0, normal(3, 4)),
}


@pytest.mark.parametrize("name", ALONE)
def test_what_the_kernel_cannot_read_is_measured_alone(name):
    assert not kernel_reads(*ALONE[name])  # pytest would print an argument, and read freed memory for it
