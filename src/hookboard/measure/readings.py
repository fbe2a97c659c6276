"""`Reading`: the result for one site after a step; `Readings`: all results of one flush, as a table."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from hookboard.base.prompts import text_table
from hookboard.measure.histogram import Histogram
from hookboard.measure.row import NONFINITE, Moments
from hookboard.model.sites import MODEL, ROLES, Role, Site, Stage


@dataclass(frozen=True, slots=True)
class Reading:
    """The result for one site after an optimizer step or an evaluation loop.

    Args:
        site: the tensor slot: name, role and index.
        moments: count, mean, minimum, maximum and so on of all its tensors in the step, as if they were one tensor.
        statistics: name to value, as they are logged.
        histogram: the histogram of the finite values; None if histograms are off.
        stage: the stage: `train`, `validate`, `test` or `predict`.
        overflowed: whether gradients of the site's optimizer were not finite under a GradScaler, which then skips the
            step. `statistics` then holds the counts, and NaN for all others.
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
    """The sites of a table's rows, and lookups from sites to rows.

    A table passes the same object on while its sites stay the same, so that what others derive from it stays, too.

    Args:
        sites: the site of each row.
    """

    def __init__(self, sites: Sequence[Site]) -> None:
        self.sites = list(sites)
        self.row: dict[Site, int] = {site: row for row, site in enumerate(self.sites)}
        self.first: dict[tuple[str, Role], int] = {}
        """The row of each module or parameter in a role; of several tensors the first."""
        for site, row in self.row.items():
            self.first.setdefault((site.name, site.role), row)
        self._tags: dict[tuple[str, Stage], list[str]] = {}
        self.subset: tuple[list[int], Places] | None = None
        """The rows that `Readings.where` has selected last, and their places."""

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
    """The readings of one flush by site, in the order in which the sites were measured first.

    It is a table, because most readings are only read as columns: an object for each would cost more than all else in
    a flush.

    Args:
        places: the site of each row.
        rows: the moments of each site, shape (sites, WIDTH), float64: the columns of `hookboard.measure.row.FIELDS`.
        channels: the rows of the channels of each site, see `Reading.channels`.
        dtypes: the dtype of the tensors of each site, see `Reading.dtype`.
        widths: how many channels each site has, see `Reading.width`.
        statistics: name of a statistic to its value for each site; None where the site has none.
        histograms: the histogram of each site; None where there is none.
        stage: the stage of all readings.
        flags: the numbers that came with the flush: the largest that any rank reported of each.
        along: further numbers that came with the flush, of this rank.
        overflowed: whether the gradients are those of a step that overflowed, see `Reading.overflowed`.
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
            more = self.channels[row], self.dtypes[row], self.widths[row]
            overflowed = self.overflowed and ROLES[site.role].is_gradient
            self._made[row] = Reading(site, moments, statistics, self.histograms[row], self.stage, overflowed, *more)
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
        """Return a copy in which gradients have NaN for all statistics except counts, no histogram, and their mark.

        `nonfinite_count` is added, how many values are NaN or infinite.
        """
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
