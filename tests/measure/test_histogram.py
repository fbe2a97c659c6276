import math

import numpy as np
import pytest
import torch
from oracle import normal

from hookboard.measure.histogram import BINS, count_into, histogram
from hookboard.measure.moments import BLOCK, Scratch


def counts_of(*tensors, implicit_zeros=0):
    counts = torch.zeros(BINS, dtype=torch.long)
    for tensor in tensors:
        count_into(counts, tensor, implicit_zeros, Scratch())
    return counts.numpy()


def histogram_of(*tensors):
    finite = torch.cat([t.double().flatten() for t in tensors])
    finite = finite[finite.isfinite()]
    return histogram(counts_of(*tensors), finite.min().item(), finite.max().item())


@pytest.mark.parametrize(
    "values",
    [
        normal(2000),
        normal(2000).relu(),
        normal(2000, mean=100.0),
        -normal(2000).exp(),
        torch.tensor([0.0]),
        torch.full((5,), -2.5),
        torch.tensor([1e-38, -1e-42, 0.0, 3e38, -3e38]),
        torch.cat([normal(100), torch.tensor([math.nan, math.inf, -math.inf])]),
    ],
    ids=["normal", "relu", "far from zero", "negative", "zero", "constant", "whole range", "NaN and infinities"],
)
def test_every_finite_value_is_in_the_bin_whose_edges_hold_it(values):
    found = histogram_of(values)
    # An edge belongs to the bin away from zero, so below zero "less than the edge" is "at most the edge".
    finite = values.double().numpy()[values.isfinite().numpy()]
    at = [((finite < e) | ((finite == e) & (e < 0))).sum() for e in found.edges[1:-1]]
    assert np.cumsum(found.counts)[:-1].tolist() == at
    assert found.counts.sum() == finite.size
    assert (found.edges[0], found.edges[-1]) == (finite.min(), finite.max())


@pytest.mark.parametrize(
    "values",
    [normal(BLOCK + 3).relu(), normal(999), normal(1000)[::2], torch.empty(0)],
    ids=["long", "odd", "gaps", "empty"],
)
def test_the_compiled_kernel_counts_as_torch_does(values, monkeypatch):
    pytest.importorskip("hookboard.measure._native", reason="installed without a C compiler")
    natively = counts_of(values)
    monkeypatch.setattr("hookboard.measure.histogram._native", None)
    assert (counts_of(values) == natively).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.bool])
def test_other_types_are_counted_as_their_float32_form(dtype):
    values = (normal(500) * 3).to(dtype)
    assert counts_of(values).tolist() == counts_of(values.float()).tolist()


def test_edges_are_fixed_so_parts_add_up_to_the_whole():
    parts = [normal(10), normal(1000, mean=7.0), normal(BLOCK + 5, std=1e-3)]
    assert sum(counts_of(part) for part in parts).tolist() == counts_of(torch.cat(parts)).tolist()


def test_implicit_zeros_are_in_the_bin_of_zero():
    assert (
        counts_of(torch.tensor([1.0]), implicit_zeros=5).tolist() == counts_of(torch.tensor([1.0, *[0] * 5])).tolist()
    )


def test_a_histogram_is_fine_enough_to_draw_and_small_enough_to_write():
    found = histogram_of(normal(100_000))
    width = found.edges[-1] - found.edges[0]
    assert np.diff(found.edges).max() < width / 20
    assert 30 < len(found.counts) <= 65


def test_nothing_finite_gives_an_empty_histogram():
    assert len(histogram(counts_of(torch.tensor([math.nan])), math.inf, -math.inf).counts) == 0
