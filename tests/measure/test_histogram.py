import math

import numpy as np
import pytest
import torch
from oracle import normal
from ways import every_way, histogram, histogram_of, no_counts, on_cpu

from hookboard.measure import histograms
from hookboard.measure.by_torch import BLOCK_ON_HOST as BLOCK


def counts_of(*tensors, measured=on_cpu):
    counts = no_counts()
    for tensor in tensors:
        measured(tensor, counts=counts)
    return counts.numpy()


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


@every_way
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
        double(1e200, 2e200, -3e200, 1.0, 0.0, math.inf, -math.inf, math.nan),
        double(1e200, 2e200),
        double(1.7e308, -1.7e308, 3e38, -1e39),
        double(3.4028236e38, 3.4e38, 1.0),
        normal(2000, dtype=torch.float64) * 1e-41,
        double(1e-300, -1e-300, 5e-324, 0.0),
        double(1.0625 - 1e-12, 1.0625, -1.0625 + 1e-12, 1.5),
        torch.tensor([2**25 - 1, 2**25, 2**40 - 1, -(2**40) + 1, 2**62]),
    ],
    ids=[
        *["normal", "relu", "far from zero", "negative", "zero", "constant", "whole range", "NaN and infinities"],
        *["beyond float32", "all beyond float32", "the ends of float64", "just beyond float32", "subnormal"],
        *["below float32", "just below an edge", "integers just below an edge"],
    ],
)
def test_every_finite_value_is_in_the_bin_whose_edges_hold_it(measured, values):
    found = histogram_of(measured, values)
    # An edge belongs to the bin away from zero, so below zero "less than the edge" is "at most the edge".
    finite = values.double().numpy()[values.isfinite().numpy()]
    at = [((finite < e) | ((finite == e) & (e < 0))).sum() for e in found.edges[1:-1]]
    assert np.cumsum(found.counts)[:-1].tolist() == at
    assert found.counts.sum() == finite.size
    assert (found.edges[0], found.edges[-1]) == (finite.min(), finite.max())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.bool])
def test_other_types_are_counted_as_their_float32_form(dtype):
    values = (normal(500) * 3).to(dtype)
    assert counts_of(values).tolist() == counts_of(values.float()).tolist()


def test_edges_are_fixed_so_parts_add_up_to_the_whole():
    parts = [normal(10), normal(1000, mean=7.0), normal(BLOCK + 5, std=1e-3)]
    assert sum(counts_of(part) for part in parts).tolist() == counts_of(torch.cat(parts)).tolist()


@every_way
def test_implicit_zeros_are_in_the_bin_of_zero(measured):
    dense = torch.tensor([0.0, 1.0, 0.0, 0.0])
    assert counts_of(dense.to_sparse(), measured=measured).tolist() == counts_of(dense).tolist()


def test_a_histogram_is_fine_enough_to_draw_and_small_enough_to_write():
    found = histogram_of(on_cpu, normal(100_000))
    width = found.edges[-1] - found.edges[0]
    assert np.diff(found.edges).max() < width / 20
    assert 30 < len(found.counts) <= 65


def test_nothing_finite_gives_an_empty_histogram():
    assert len(histogram(counts_of(torch.tensor([math.nan])), math.inf, -math.inf).counts) == 0


def test_what_lies_between_two_filled_bins_is_one_empty_bin():
    found = histogram_of(on_cpu, torch.tensor([-64.0, 0.0, 0.0, 64.0]))
    assert found.counts.tolist() == [1, 0, 2, 0, 1]
    assert found.edges[[0, -1]].tolist() == [-64, 64]


def test_sites_that_are_converted_together_have_the_histograms_that_each_has_alone():
    tensors = [normal(500), torch.tensor([math.nan]), torch.tensor([1e-40, 3e38]), torch.full((3,), -2.0), normal(9)]
    ends = [(x[x.isfinite()].double().numpy()) for x in tensors]
    low, high = (np.array([f(x, initial=e) for x in ends]) for f, e in ((np.min, math.inf), (np.max, -math.inf)))
    together = histograms([counts_of(x) for x in tensors], low, high)
    for tensor, found, *range_of in zip(tensors, together, low, high, strict=True):
        alone = histogram(counts_of(tensor), *range_of)
        assert (found.edges.tolist(), found.counts.tolist()) == (alone.edges.tolist(), alone.counts.tolist())
