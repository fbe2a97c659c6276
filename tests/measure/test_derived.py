"""Statistics for which moments are not enough, on every way of measuring, against float64 over the raw numbers."""

import math

import pytest
import torch
from oracle import QUANTILES, assert_derived, derived, normal
from ways import as_row, every_way, no_counts, on_cpu

from hookboard import Statistic
from hookboard.measure import DERIVED, WIDTH, Moments, measure_channels, merge_rows, plan
from hookboard.measure.by_torch import rows_of_channels

EVERYTHING = plan(list(DERIVED))
WITHOUT_CHANNELS = ("dead_fraction", "effective_rank")


def together(measured, parts, names=tuple(DERIVED), ends=None):
    """The statistics of several tensors, each measured by itself and merged as the calls of one site."""
    resolved = plan(names)
    counts = no_counts()
    rows = [as_row(measured(part, resolved.with_limits(ends), counts=counts)) for part in parts]
    merged = merge_rows(torch.stack(rows), torch.zeros(len(rows), dtype=torch.long), 1, resolved.more)[0].tolist()
    moments = Moments(*merged[:WIDTH])
    return resolved.values(moments, merged[WIDTH:], bins=counts.numpy(), dtype=parts[0].dtype)


def of_flat(names=DERIVED):
    return tuple(name for name in names if name not in WITHOUT_CHANNELS)


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
    assert_derived(together(measured, parts, of_flat(), ends=(-0.97, 0.97)), parts, ends=(-0.97, 0.97))


@every_way
@pytest.mark.parametrize("scale", [1e-300, 1e300])
def test_the_kurtosis_of_values_at_the_limits_of_float64_neither_overflows_nor_vanishes(measured, scale):
    x = normal(1000, dtype=torch.float64)
    found = together(measured, [x[:300] * scale, x[300:] * scale], ["kurtosis"])["kurtosis"]
    true = ((x - x.mean()) ** 4).mean() / ((x - x.mean()) ** 2).mean() ** 2
    assert found == pytest.approx(true.item(), rel=1e-9)


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


def test_values_at_an_end_count_as_saturated_in_half_precision_too():
    x = torch.tensor([0.969, 0.97, 0.9705, 0.975, -0.5, -0.98], dtype=torch.bfloat16)
    found = together(on_cpu, [x], ["saturated_fraction"], ends=(-0.97, 0.97))["saturated_fraction"]
    true = (x.double().abs() >= 0.97).double().mean().item()
    assert found == true


def test_what_has_no_ends_has_no_saturated_fraction():
    assert together(on_cpu, [normal(5)], ["mean", "saturated_fraction"]).keys() == {"mean"}


@pytest.mark.parametrize(("shape", "dim"), [((5, 3), 1), ((2, 3, 4, 4), 1), ((2, 4, 1), -1), ((7, 3), 0)])
def test_dead_channels_are_those_that_are_0_at_every_sample_and_place(shape, dim):
    x = normal(*shape)
    x.select(dim, 0).zero_()
    _, channels = measure_channels(x, dim, EVERYTHING)
    found = EVERYTHING.values(moments_of(x), [0.0] * 99, channels=channels)
    assert found["dead_fraction"] == 1 / shape[dim]


def test_a_channel_with_nan_is_not_dead():
    x = torch.tensor([[0.0, 0.0, math.nan], [0.0, math.nan, math.nan]])
    channels = rows_of_channels(x, 1, frozenset({"zeros"})).numpy()
    found = EVERYTHING.values(moments_of(x), [0.0] * 99, channels=channels)
    assert found["dead_fraction"] == 1 / 2


def test_without_channels_bins_or_a_dtype_there_is_no_such_statistic():
    values = EVERYTHING.values(moments_of(normal(5)), [math.nan] * (EVERYTHING.width - WIDTH))
    assert values.keys() == {name for name, each in DERIVED.items() if not each.why_not}


def test_float64_and_integers_have_no_underflow_and_integers_no_headroom():
    names = ["underflow_fraction", "headroom"]
    assert together(on_cpu, [normal(5, dtype=torch.float64)], names).keys() == {"headroom"}
    assert together(on_cpu, [torch.arange(5)], names) == {}


def test_implicit_zeros_of_a_sparse_tensor_count():
    dense = normal(20, 5).relu() * (normal(20, 5, mean=1) > 1)
    found = together(on_cpu, [dense.to_sparse()], of_flat(), ends=(0.1, 1.0))
    assert_derived(found, [dense.flatten()], ends=(0.1, 1.0))


def test_what_is_not_asked_for_adds_no_column():
    assert plan(["mean", "p50", "headroom", "dead_fraction", "underflow_fraction"]).width == WIDTH
    assert plan(["kurtosis", "kurtosis", "saturated_fraction"]).width == WIDTH + 3


def test_ones_own_statistics_stand_behind_the_built_in_ones():
    mine = Statistic("size", lambda x: float(x.numel()), merge="sum")
    found = together(on_cpu, [normal(5), normal(7)], ["kurtosis", mine, "max"])
    assert found["size"] == 12
    assert found["kurtosis"] == together(on_cpu, [normal(5), normal(7)], ["kurtosis"])["kurtosis"]


def moments_of(x):
    return Moments(*on_cpu(x)[:WIDTH])


def rank_of(parts, dim=1):
    """The effective rank of several tensors, each measured by itself."""
    resolved = plan("effective_rank")
    rows = torch.stack([as_row(measure_channels(part, dim, resolved)[0]) for part in parts])
    merged = merge_rows(rows, torch.zeros(len(rows), dtype=torch.long), 1, resolved.more)[0].tolist()
    return resolved.values(Moments(*merged[:WIDTH]), merged[WIDTH:])


MATRICES = {
    "several calls": ([normal(100, 10), normal(3, 10, mean=5), torch.empty(0, 10), normal(50, 10, std=10)], 1),
    "pictures": ([normal(2, 6, 5, 4)], 1),
    "tokens": ([normal(3, 7, 12)], -1),
    "one sample": ([normal(1, 9)], 1),
    "few samples": ([normal(5, 40)], 1),
    "all equal": ([torch.full((20, 5), 0.1), torch.full((7, 5), 0.1)], 1),
    "not finite": ([torch.where(normal(99, 4) > 2, math.nan, normal(99, 4))], 1),
    "nothing finite": ([torch.full((3, 4), math.inf)], 1),
    "huge": ([normal(100, 5) * 1e37, normal(100, 5)], 1),
    "limits of float64": ([normal(100, 5, dtype=torch.float64) * 1e300, normal(10, 5, dtype=torch.float64) * 1e299], 1),
    "far from zero": ([normal(100, 5, mean=1e3), normal(100, 5, mean=1e3)], 1),
    "of low rank": ([normal(250, 3) @ normal(3, 30)], 1),
}


@pytest.mark.parametrize("kind", MATRICES)
def test_the_effective_rank_is_that_of_the_singular_values_of_all_rows(kind):
    parts, dim = MATRICES[kind]
    expected = derived([part.double() for part in parts], dim)["effective_rank"]
    assert rank_of(parts, dim)["effective_rank"] == pytest.approx(expected, rel=1e-6, nan_ok=True)


def test_the_effective_rank_of_a_wide_layer_is_that_of_a_sample_within_bounds():
    wide = normal(3000, 500)
    assert 45 < rank_of([wide])["effective_rank"] <= 64
    assert rank_of([wide[:, :1] @ torch.ones(1, 500)])["effective_rank"] == pytest.approx(1, abs=1e-6)
    assert rank_of([wide]) == rank_of([wide])


def test_calls_with_other_numbers_of_channels_have_no_effective_rank():
    assert rank_of([normal(10, 4), normal(10, 5)]) == {}
    assert rank_of([normal(10, 100), normal(10, 200)]) == {}, "of both 64 channels are sampled, not the same ones"
    assert rank_of([normal(10)]) == {}


def test_a_sample_takes_no_random_number():
    before = torch.get_rng_state()
    rank_of([normal(3000, 500)])
    assert torch.equal(torch.get_rng_state(), before)
