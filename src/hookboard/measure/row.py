"""The row: count, mean, deviation, bins and so on of a set of numbers, which merge exactly; `Readings` of all sites."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from hookboard.base.messages import text_table
from hookboard.base.ranks import Ranks
from hookboard.model.sites import MODEL, ROLES, Role, Site, Stage

Rows = TypeVar("Rows", Tensor, np.ndarray)

FIELDS = ("count", "mean", "deviation", "abs_mean", "zeros", "nan", "posinf", "neginf", "min", "max")
"""The columns of a row; means instead of sums, so that nothing overflows.

count: how many values are finite; all columns but nan, posinf and neginf (counts of the others) describe only these.
deviation: the root of the mean squared difference from the mean (the standard deviation with divisor `count`).
zeros: how many values are 0. min, max: the extremes; inf and -inf where count is 0."""

WIDTH = len(FIELDS)

NONFINITE = slice(FIELDS.index("nan"), FIELDS.index("neginf") + 1)  # the columns that count what is not finite

EMPTY = (0.0,) * 8 + (math.inf, -math.inf)  # of a tensor without elements

MAX_CHANNEL_ROWS = 1024
"""Maximum number of channels of a tensor that get a row; of more, every k-th does. All ranks send these rows at a look:
32 MB of a model with 8 billion parameters (`benchmarks/ranks.py`)."""


class Moments(NamedTuple):
    """The columns of one merged row, see `FIELDS`, on the host; `abs_mean` is NaN where no statistic needs it.

    Each may also be an array, shape (n,), float64, with one number for each of n sites.
    """

    count: float  # type: ignore[assignment]  # every tuple has a method of this name, which nobody needs here
    mean: float
    deviation: float
    abs_mean: float
    zeros: float
    nan: float
    posinf: float
    neginf: float
    min: float
    max: float

    @property
    def nonfinite(self) -> float:
        """The number of values that are NaN or infinite."""
        return self.nan + self.posinf + self.neginf

    @property
    def rms(self) -> float:
        """The root mean square of the finite values; an array if the moments are arrays."""
        # Python's own `hypot` differs in the last bit from that of arrays.
        root = np.hypot(self.mean, self.deviation)
        return root if root.ndim else root.item()  # type: ignore[no-any-return]  # an array for arrays

    @property
    def square_sum(self) -> float:
        """The sum of the squares of the finite values; inf where float64 cannot hold it."""
        return self.rms * self.rms * self.count


def elements_in(rows: Rows) -> Rows:
    """Return how many values each row describes, finite or not: shape (...) for rows of shape (..., WIDTH or more)."""
    elements: Rows = rows[..., 0] + rows[..., NONFINITE].sum(-1)
    return elements


def merge(rows: Tensor, others: Tensor) -> Tensor:
    """Merge rows, shape (n, WIDTH), float64, with as many others: each result describes the values of both."""
    count, mean, deviation, abs_mean = rows[:, :4].split(1, 1)
    other_count, other_mean, other_deviation, other_abs_mean = others[:, :4].split(1, 1)
    # Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1979).
    share = other_count / (count + other_count).clamp(min=1)
    rest, away = 1 - share, other_mean - mean
    # In this order, because a square of a row without values may be infinite.
    squares = deviation * rest * deviation + other_deviation * share * other_deviation + (away * share) * (away * rest)
    means = [mean + away * share, squares.sqrt(), abs_mean + (other_abs_mean - abs_mean) * share]
    low, high = torch.minimum(rows[:, 8:9], others[:, 8:9]), torch.maximum(rows[:, 9:], others[:, 9:])
    return torch.cat([count + other_count, *means, rows[:, 4:8] + others[:, 4:8], low, high], 1)


def merge_over(ranks: Ranks, rows: Tensor) -> Tensor:
    """Merge rows with the same rows of all other ranks, to the same bits on each; a NaN `count` gives NaN."""
    count, mean, deviation, abs_mean = rows[:, :4].split(1, 1)
    ends = ranks.max(torch.cat([-rows[:, 8:9], rows[:, 9:]], 1))  # the minimum as the largest negative
    sums = torch.cat([count, count * mean, count * abs_mean, rows[:, 4:8]], 1)
    # Columns without content, as of NaN and infinities, are not sent: channels have many rows. Counts always are: a NaN
    # among them says that a rank has switched its site off.
    has_content = ranks.max(((sums != 0) & ~sums.isnan()).any(0).double()).bool()
    has_content[0] = True
    sums[:, has_content] = ranks.sum(sums[:, has_content])
    at_least_one = sums[:, :1].clamp(min=1)
    means = sums[:, 1:3] / at_least_one
    squares = ranks.sum(count * (deviation.square() + (mean - means[:, :1]).square()))
    deviation = (squares / at_least_one).sqrt()
    return torch.cat([sums[:, :1], means[:, :1], deviation, means[:, 1:], sums[:, 3:], -ends[:, :1], ends[:, 1:]], 1)


def channel_stride(channels: int) -> int:
    """Return the smallest k with which channels 0, k, 2k, ... are at most `MAX_CHANNEL_ROWS`; only these get a row.

    >>> channel_stride(4096), channel_stride(4097), channel_stride(14_336)
    (4, 5, 14)
    """
    # Of their number alone, so that all calls, steps, ranks and roles take the same ones. A pattern with a period that
    # divides k appears in such a sample everywhere or nowhere.
    return max(1, -(-channels // MAX_CHANNEL_ROWS))


def channel_row_count(channels: int) -> int:
    """Return how many of so many channels get a row.

    >>> channel_row_count(4096), channel_row_count(14_336), channel_row_count(1_000_003)
    (1024, 1024, 1024)
    """
    return -(-channels // channel_stride(channels))


MANTISSA_BITS = 4
"""Sixteen bins for each power of two: each is at most 1/16 of its (normal) value wide; TensorBoard's grow by 1/10."""

SHIFT = 23 - MANTISSA_BITS
"""The bits of a float32 shifted right by this are its bin: its sign, exponent, and `MANTISSA_BITS` of its mantissa."""

BINS = 1 << (32 - SHIFT)  # for all values of float32; those of NaN and infinities are left out of histograms


def as_single(values: Tensor) -> Tensor:
    """Convert real values to float32 without moving any of them across an edge of a bin."""
    if values.dtype is torch.float64 or not values.dtype.is_floating_point:
        wide = values.double()
        single = wide.float()
        # What was rounded away from 0, to infinity too, could be beyond an edge: the number before takes its place.
        return single.where(single.abs() <= wide.abs(), single.nextafter(torch.zeros_like(single)))
    return values.float()


def bins_of(single: Tensor) -> Tensor:
    """Return the index of the bin of each value, flattened to shape (n,), int32; `single` has dtype float32."""
    return (single.contiguous().view(torch.int32).reshape(-1) >> SHIFT) & (BINS - 1)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of the finite values of one site between ascending edges.

    Args:
        edges: shape (n + 1,), float64; the first and last are the smallest and the largest value. [0] if there are no
            counts.
        counts: shape (n,), float64.
    """

    edges: np.ndarray
    counts: np.ndarray


def _bin_edges() -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the finite bins in ascending order of values, and their edges, one more than bins."""
    finite = 255 << MANTISSA_BITS
    starts = (np.arange(finite + 1, dtype=np.uint32) << SHIFT).view(np.float32).astype(np.float64)
    # The bits after those of the largest number are infinity's; the last bin ends where float32 does.
    starts[-1] = 2.0**128
    # The bits of negative numbers, in the upper half of the bins, grow with the magnitude.
    order = np.concatenate([np.arange(finite)[::-1] + BINS // 2, np.arange(finite)])
    return order, np.concatenate([-starts[:0:-1], starts])


_ORDER, _EDGES = _bin_edges()


def histogram(counts: np.ndarray, low: float, high: float, resolution: int = 64) -> Histogram:
    """Turn the bin counts of a site into at most `resolution` bins from `low` to `high`; none without values."""
    ordered = counts[_ORDER].astype(np.float64)
    if not ordered.any():
        return Histogram(np.zeros(1), ordered[:0])
    # Joined bins are about `1 / resolution` of the range wide: a chart cannot show the hundreds of bins close to zero,
    # and the file would hold them for every site and step. An empty stretch between two that hold values is one bin,
    # however wide: a chart draws it alike.
    cuts = 2 * (low / 2 + np.arange(1, resolution) / resolution * (high / 2 - low / 2))  # the range may exceed float64
    starts = np.unique(np.append(0, np.searchsorted(_EDGES, cuts)))
    starts = starts[starts < len(_ORDER)]
    sums = np.add.reduceat(ordered, starts)
    is_kept = sums > 0
    last = np.flatnonzero(is_kept)[-1]
    is_kept[1 : last + 1] |= is_kept[:last]  # the first that is empty after one that is not
    edges = np.append(_EDGES[starts[is_kept]].clip(low, high), high)
    edges[0] = low
    return Histogram(edges, sums[is_kept])


def quantile(counts: np.ndarray, low: float, high: float, share: float) -> float:
    """Estimate a quantile of the counted values, as `torch.quantile` with linear interpolation; NaN without values."""
    ends = np.cumsum(counts[_ORDER])
    if not ends[-1]:
        return math.nan
    place = share * (float(ends[-1]) - 1)
    rank = math.floor(place)
    # Each is off by at most half the width of its bin, 1/32 of its magnitude, and below normal numbers by less than
    # 7.4e-40. Beyond the range of float32 the result only lies between `low` and `high`.
    lower, upper = (_middle(np.searchsorted(ends, each, side="right").item(), low, high) for each in (rank, rank + 1))
    return lower + (place - rank) * (upper - lower) if place > rank else lower


def _middle(place: int, low: float, high: float) -> float:
    """Return the middle of a bin, or 0 for the two bins next to 0, clipped to `low` and `high`."""
    is_next_to_zero = place in (len(_ORDER) // 2 - 1, len(_ORDER) // 2)
    middle = 0.0 if is_next_to_zero or place == len(_ORDER) else (_EDGES[place] + _EDGES[place + 1]).item() / 2
    return min(max(middle, low), high)


def count_below(counts: np.ndarray, limit: float) -> float:
    """Return how many finite values are smaller in magnitude than a limit, which is an edge of a bin."""
    bins = int(np.float32(limit).view(np.uint32)) >> SHIFT
    return float(counts[:bins].sum() + counts[BINS // 2 : BINS // 2 + bins].sum())


@dataclass(frozen=True, slots=True)
class Reading:
    """The result for one site after an optimizer step or an evaluation loop.

    Args:
        site: the tensor slot: name, role and index.
        moments: count, mean, minimum, maximum and so on of all its tensors in the step, as if they were one tensor.
        statistics: name to value, as they are logged.
        histogram: the histogram of the finite values; None if histograms are off.
        stage: the stage: `train`, `validate`, `test` or `predict`.
        overflowed: whether gradients were not finite under a GradScaler, which then skips the step. `statistics` then
            holds `nonfinite_count`, and NaN for all others.
        channels: one merged row for each channel (unit), shape (channels, columns of `hookboard.measure.row.FIELDS`),
            float64; if there are more than 1024 channels, one for every k-th (0, k, 2 * k ...), with the smallest k
            that leaves no more than 1024. None if channels are not measured, or if the tensors of the step had
            different numbers of them.
        dtype: the dtype of its first tensor in the step (of a gradient, as autograd returned it); None if unknown.
        width: the number of channels, with or without a row; 0 if channels are not measured.
    """

    site: Site
    moments: Moments
    statistics: dict[str, float]
    histogram: Histogram | None = field(repr=False)
    stage: Stage = "train"
    overflowed: bool = False
    channels: np.ndarray | None = field(default=None, repr=False, compare=False)
    dtype: torch.dtype | None = None
    width: int = field(default=0, repr=False, compare=False)

    @property
    def sample_of(self) -> int | None:
        """The number of channels if only every k-th has a row; None if all have one, or no channels are measured."""
        return None if self.channels is None or len(self.channels) == self.width else self.width


def _site_in_words(site: Site) -> list[str]:
    """Return the name of the module or parameter ("model" for the whole model), and the role with the index, if any."""
    return [site.name or MODEL, f"{site.role} {site.index}".strip()]


class ReadingList(tuple[Reading, ...]):
    """The readings of a step, which have one stage. A prompt shows them as a table."""

    def __repr__(self) -> str:
        names = list(dict.fromkeys(name for reading in self for name in reading.statistics))
        rows = [
            [*_site_in_words(one.site), *(f"{one.statistics[n]:.4g}" if n in one.statistics else "" for n in names)]
            for one in self
        ]
        return text_table(["name", "tensor", *names], rows) if self else "()"


class Places:
    """The sites of a table's rows, and lookups from sites to rows."""

    def __init__(self, sites: Sequence[Site]) -> None:
        # A table passes these places on while its sites stay the same, so that what others derive from them stays, too.
        self.sites = list(sites)
        self.row: dict[Site, int] = {site: row for row, site in enumerate(self.sites)}
        self.first: dict[tuple[str, Role], int] = {}  # of several tensors of a module or parameter in a role the first
        for site, row in self.row.items():
            self.first.setdefault((site.name, site.role), row)
        self._tags: dict[tuple[str, Stage], list[str]] = {}
        self.subset: tuple[list[int], Places] | None = None  # the rows that `Readings.where` selected last

    def of_role(self, role: Role) -> list[Site]:
        """Return the sites of a role, in the order of their rows."""
        return [site for site in self.sites if site.role == role]

    def names(self, role: Role) -> list[str]:
        """Return the name of each module or parameter in a role, in the order of the rows."""
        return [name for name, its in self.first if its == role]

    def tags(self, statistic: str, stage: Stage) -> list[str]:
        """Return the tag of a statistic for each row; they are made once."""
        if (statistic, stage) not in self._tags:
            self._tags[statistic, stage] = [site.scalar_tag(statistic, stage) for site in self.sites]
        return self._tags[statistic, stage]

    def rows(self, role: Role, names: Iterable[str]) -> np.ndarray:
        """Return the first row of each named module or parameter in a role, -1 where there is none, as integers."""
        return np.array([self.first.get((name, role), -1) for name in names], dtype=np.intp)


@dataclass(eq=False)
class Readings(Mapping[Site, Reading]):
    """The readings of one `Table.send` by site, as columns: an object for each would cost more than all the rest.

    Args:
        rows: the moments of each site, shape (sites, WIDTH), float64.
        statistics: each statistic's value for each site; None where the site has none.
        flags: the numbers that came with it: the largest that any rank reported of each.
        along: further numbers that came with it, of this rank.
    """

    places: Places
    rows: np.ndarray
    channels: Sequence[np.ndarray | None]
    dtypes: Sequence[torch.dtype | None]
    widths: Sequence[int]
    statistics: Mapping[str, Sequence[float | None]]
    histograms: Sequence[Histogram | None]
    stage: Stage
    flags: Sequence[float] = ()
    along: Sequence[float] = ()
    overflowed: bool = False
    _made: dict[int, Reading] = field(default_factory=dict, init=False)

    def at(self, row: int) -> Reading:
        """Return the reading of a row."""
        if row not in self._made:
            site, moments = self.places.sites[row], Moments(*self.rows[row].tolist())
            columns = self.statistics.items()
            statistics = {name: value for name, column in columns if (value := column[row]) is not None}
            details = self.channels[row], self.dtypes[row], self.widths[row]
            overflowed = self.overflowed and ROLES[site.role].is_gradient
            self._made[row] = Reading(site, moments, statistics, self.histograms[row], self.stage, overflowed, *details)
        return self._made[row]

    def scalars(self) -> dict[str, float]:
        """Return the statistics of all sites by tag. Two sites may share a tag: then the last one has it."""
        found = dict[str, float]()
        for name, column in self.statistics.items():
            tags = self.places.tags(name, self.stage)
            found.update({tag: value for tag, value in zip(tags, column, strict=True) if value is not None})
        return found

    def with_histogram(self) -> dict[str, Reading]:
        """Return the readings that have a histogram, by the tag of the histogram."""
        sites = enumerate(self.places.sites)
        return {site.histogram_tag(self.stage): self.at(row) for row, site in sites if self.histograms[row] is not None}

    def as_overflowed(self) -> "Readings":
        """Return a copy whose gradients have `nonfinite_count`, NaN for other statistics, and no histogram."""
        of_gradients = [ROLES[site.role].is_gradient for site in self.places.sites]
        counts = self.rows[:, NONFINITE].sum(1).tolist()
        statistics: dict[str, Sequence[float | None]] = {"nonfinite_count": [None] * len(self)}
        for name, column in {**statistics, **self.statistics}.items():
            marks = counts if name == "nonfinite_count" else [math.nan] * len(self)
            statistics[name] = [
                mark if is_one and (value is not None or marks is counts) else value
                for value, mark, is_one in zip(column, marks, of_gradients, strict=True)
            ]
        kept = [None if is_one else each for each, is_one in zip(self.histograms, of_gradients, strict=True)]
        return replace(self, statistics=statistics, histograms=kept, overflowed=True)

    def where(self, is_kept: np.ndarray) -> "Readings":
        """Return the readings of some of the sites: those where `is_kept`, shape (sites,), is true."""
        if is_kept.all():
            return self
        kept = np.flatnonzero(is_kept).tolist()
        subset = self.places.subset
        if subset is None or subset[0] != kept:
            subset = self.places.subset = kept, Places([self.places.sites[row] for row in kept])
        lists = ("channels", "dtypes", "widths", "histograms")
        columns: dict[str, Any] = {name: [getattr(self, name)[row] for row in kept] for name in lists}
        columns["statistics"] = {name: [column[row] for row in kept] for name, column in self.statistics.items()}
        return replace(self, places=subset[1], rows=self.rows[kept], **columns)

    def __getitem__(self, site: Site) -> Reading:
        return self.at(self.places.row[site])

    def __iter__(self) -> Iterator[Site]:
        return iter(self.places.sites)

    def __len__(self) -> int:
        return len(self.places.sites)
