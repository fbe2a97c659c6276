import math

import numpy as np
import pytest
import torch
from oracle import normal
from ways import KERNELS, measured

from hookboard.measure.by_torch import BLOCK
from hookboard.measure.statistics import plan
from hookboard.measure.table import Table
from hookboard.model.sites import Site


def histogram(*tensors, kernel="compiled"):
    return measured(*tensors, kernel=kernel, histogram=True).histogram


def as_lists(found):
    return found.edges.tolist(), found.counts.tolist()


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("kernel", KERNELS)
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
def test_every_finite_value_is_in_the_bin_whose_edges_hold_it(kernel, values):
    found = histogram(values, kernel=kernel)
    # An edge belongs to the bin away from zero, so below zero "less than the edge" is "at most the edge".
    finite = values.double().numpy()[values.isfinite().numpy()]
    at = [((finite < e) | ((finite == e) & (e < 0))).sum() for e in found.edges[1:-1]]
    assert np.cumsum(found.counts)[:-1].tolist() == at
    assert found.counts.sum() == finite.size
    assert (found.edges[0], found.edges[-1]) == (finite.min(), finite.max())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.bool])
def test_other_types_are_counted_as_their_float32_form(dtype):
    values = (normal(500) * 3).to(dtype)
    assert as_lists(histogram(values)) == as_lists(histogram(values.float()))


@pytest.mark.parametrize("kernel", KERNELS)
def test_edges_are_fixed_so_parts_add_up_to_the_whole(kernel):
    parts = [normal(10), normal(1000, mean=7.0), normal(BLOCK + 5, std=1e-3)]
    assert as_lists(histogram(*parts, kernel=kernel)) == as_lists(histogram(torch.cat(parts)))


@pytest.mark.parametrize("kernel", KERNELS)
def test_implicit_zeros_are_in_the_bin_of_zero(kernel):
    dense = torch.tensor([0.0, 1.0, 0.0, 0.0])
    assert as_lists(histogram(dense.to_sparse(), kernel=kernel)) == as_lists(histogram(dense))


def test_a_histogram_is_fine_enough_to_draw_and_small_enough_to_write():
    found = histogram(normal(100_000))
    width = found.edges[-1] - found.edges[0]
    assert np.diff(found.edges).max() < width / 20
    assert 30 < len(found.counts) <= 65


def test_nothing_finite_gives_an_empty_histogram():
    assert len(histogram(torch.tensor([math.nan])).counts) == 0


def test_what_lies_between_two_filled_bins_is_one_empty_bin():
    found = histogram(torch.tensor([-64.0, 0.0, 0.0, 64.0]))
    assert found.counts.tolist() == [1, 0, 2, 0, 1]
    assert found.edges[[0, -1]].tolist() == [-64, 64]


def test_sites_that_are_converted_together_have_the_histograms_that_each_has_alone():
    tensors = [normal(500), torch.tensor([math.nan]), torch.tensor([1e-40, 3e38]), torch.full((3,), -2.0), normal(9)]
    table = Table(plan("mean"), torch.device("cpu"), histogram=True)
    table.observe_all((Site(f"layer{number}", "output"), tensor, None) for number, tensor in enumerate(tensors))
    for tensor, reading in zip(tensors, table.send()().values(), strict=True):
        assert as_lists(reading.histogram) == as_lists(histogram(tensor))
