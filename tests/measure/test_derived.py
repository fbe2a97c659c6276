"""Statistics for which moments are not enough, on every way of measuring, against float64 over the raw numbers."""

import math

import pytest
import torch
from oracle import QUANTILES, assert_derived, normal
from ways import as_row, every_way, no_counts, on_cpu

from hookboard import Statistic
from hookboard.measure import DERIVED, WIDTH, Moments, measure_channels, merge_rows, plan
from hookboard.measure.by_torch import rows_of_channels

EVERYTHING = plan(list(DERIVED))


def together(measured, parts, names=tuple(DERIVED)):
    """The statistics of several tensors, each measured by itself and merged as the calls of one site."""
    resolved = plan(names)
    counts = no_counts()
    rows = [as_row(measured(part, resolved, counts=counts)) for part in parts]
    merged = merge_rows(torch.stack(rows), torch.zeros(len(rows), dtype=torch.long), 1, resolved.more)[0].tolist()
    moments = Moments(*merged[:WIDTH])
    return resolved.values(moments, merged[WIDTH:], bins=counts.numpy(), dtype=parts[0].dtype)


def of_flat(names=DERIVED):
    return tuple(name for name in names if name != "dead_fraction")


KINDS = {
    "normal": [normal(1000)],
    "all equal": [torch.full((999,), 0.1)],
    "empty": [torch.empty(0)],
    "several calls": [normal(3), normal(500, mean=9.0), torch.empty(0), normal(77, std=1e-3)],
    "far from zero": [normal(1000, mean=1e4), normal(500, mean=1e4)],
    "heavy tails": [normal(5000) ** 5],
    "not finite": [torch.tensor([1.0, math.nan, -2.0, math.inf, 0.5, -math.inf, 0.0])],
    "tiny": [normal(100, std=1e-40)],
    "half": [normal(1000, std=1e4, dtype=torch.float16), normal(100, dtype=torch.float16)],
    "half underflowing": [normal(1000, std=3e-5, dtype=torch.float16)],
    "bfloat16": [normal(1000, std=1e-38, dtype=torch.bfloat16)],
    "integers": [torch.arange(-50, 100)],
    "relu": [normal(1000).relu()],
    "large": [normal(1 << 19, std=0.3)],
}


@every_way
@pytest.mark.parametrize("kind", KINDS)
def test_it_equals_what_float64_gives_of_all_values_together(measured, kind):
    parts = [part.flatten() for part in KINDS[kind]]
    assert_derived(together(measured, parts, of_flat()), parts)


@pytest.mark.parametrize("share", QUANTILES)
@pytest.mark.parametrize("seed", range(0, 20, 4))
def test_a_quantile_is_off_by_at_most_half_a_bin(share, seed):
    generator = torch.Generator().manual_seed(seed)
    size, scale = int(torch.randint(1, 400, (), generator=generator)), 10.0 ** (seed - 10)
    x = torch.randn(size, generator=generator) * scale + (seed % 3) * scale
    true = torch.quantile(x.double(), int(share[1:]) / 100).item()
    found = together(on_cpu, [x], [share])[share]
    lower, upper = (torch.quantile(x.double(), int(share[1:]) / 100, interpolation=how) for how in ("lower", "higher"))
    assert abs(found - true) <= max(lower.abs(), upper.abs()).item() / 32
    assert x.min() <= found <= x.max()


def test_a_quantile_beyond_float32_lies_between_the_extremes():
    x = torch.tensor([-1e200, 1.0, 1e200], dtype=torch.float64)
    found = together(on_cpu, [x], QUANTILES)
    assert [-1e200, *(found[name] for name in sorted(QUANTILES)), 1e200] == sorted([-1e200, *found.values(), 1e200])


@pytest.mark.parametrize(("shape", "dim"), [((5, 3), 1), ((2, 3, 4, 4), 1), ((2, 4, 1), -1), ((7, 3), 0)])
def test_dead_channels_are_those_that_are_0_at_every_sample_and_place(shape, dim):
    x = normal(*shape)
    x.select(dim, 0).zero_()
    _, channels = measure_channels(x, dim, EVERYTHING)
    found = EVERYTHING.values(moments_of(x), [], channels=channels)
    assert found["dead_fraction"] == 1 / shape[dim]


def test_a_channel_with_nan_is_not_dead():
    x = torch.tensor([[0.0, 0.0, math.nan], [0.0, math.nan, math.nan]])
    channels = rows_of_channels(x, 1, frozenset({"zeros"})).numpy()
    found = EVERYTHING.values(moments_of(x), [], channels=channels)
    assert found["dead_fraction"] == 1 / 2


def test_without_channels_bins_or_a_dtype_there_is_no_such_statistic():
    values = EVERYTHING.values(moments_of(normal(5)), [])
    assert values.keys() == {name for name, each in DERIVED.items() if not each.why_not}


def test_float64_and_integers_have_no_underflow_and_integers_no_headroom():
    names = ["underflow_fraction", "headroom"]
    assert together(on_cpu, [normal(5, dtype=torch.float64)], names).keys() == {"headroom"}
    assert together(on_cpu, [torch.arange(5)], names) == {}


def test_implicit_zeros_of_a_sparse_tensor_count():
    dense = normal(20, 5).relu() * (normal(20, 5, mean=1) > 1)
    found = together(on_cpu, [dense.to_sparse()], of_flat())
    assert_derived(found, [dense.flatten()])


def test_what_is_not_asked_for_adds_no_column():
    assert plan(["mean", "p50", "headroom", "dead_fraction", "underflow_fraction"]).width == WIDTH


def test_ones_own_statistics_stand_behind_the_built_in_ones():
    mine = Statistic("size", lambda x: float(x.numel()), merge="sum")
    found = together(on_cpu, [normal(5), normal(7)], ["headroom", mine, "max"])
    assert found["size"] == 12
    assert found["headroom"] == together(on_cpu, [normal(5), normal(7)], ["headroom"])["headroom"]


def moments_of(x):
    return Moments(*on_cpu(x)[:WIDTH])
