"""`Readings`: what one flush gives, as a table of rows; a reading is made when somebody asks for it."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from hookboard.measure import FIELDS, WIDTH, Histogram, Moments, Table
from hookboard.recording.reading import Reading
from hookboard.sites import Role, Site, Stage

_COUNT = FIELDS.index("count")
_NONFINITE = slice(FIELDS.index("nan"), FIELDS.index("neginf") + 1)


class Places:
    """Which row belongs to which site. Flushes with the same sites share it.

    Args:
        sites: of each row.
    """

    def __init__(self, sites: Sequence[Site]) -> None:
        self.sites = list(sites)
        self._rows: dict[Site, int] = {site: row for row, site in enumerate(self.sites)}
        self._first: dict[Role, dict[str, int]] = {}
        self._of_role: dict[Role, list[Site]] = {}
        for site, row in self._rows.items():
            self._first.setdefault(site.role, {}).setdefault(site.name, row)
            self._of_role.setdefault(site.role, []).append(site)
        self._asked: dict[tuple[Role, tuple[str, ...]], np.ndarray] = {}
        self._kept: dict[str, tuple[Hashable, Any]] = {}

    def row(self, site: Site) -> int | None:
        """The row of a site; None if there is none."""
        return self._rows.get(site)

    def first(self, role: Role) -> Mapping[str, int]:
        """The row of each module or parameter by name, in order; of several tensors the first."""
        return self._first.get(role, {})

    def of_role(self, role: Role) -> list[Site]:
        """The sites of a role, in order."""
        return self._of_role.get(role, [])

    def rows(self, role: Role, names: tuple[str, ...]) -> np.ndarray:
        """The rows of these modules or parameters, of several tensors the first; -1 where there is none."""
        found = self._asked.get((role, names))
        if found is None:
            first = self.first(role)
            found = self._asked[role, names] = np.array([first.get(name, -1) for name in names], dtype=np.intp)
        return found

    def once(self, what: str, state: Hashable, make: Callable[[], Any]) -> Any:
        """What was made of these sites; it is made anew only if the state that it was made in is another one."""
        kept = self._kept.get(what)
        if kept is None or kept[0] != state:
            kept = self._kept[what] = state, make()
        return kept[1]


class Numbers(NamedTuple):
    """What a reading says beside its statistics; it is made in a fraction of the time. See `Reading`."""

    moments: Moments
    channels: np.ndarray | None
    dtype: torch.dtype | None
    width: int

    @property
    def sample_of(self) -> int | None:
        """How many channels those with a row are a sample of; None if all have one."""
        return None if self.channels is None or len(self.channels) == self.width else self.width


class Results(NamedTuple):
    """What is computed of the rows of one flush, for all sites at once.

    Args:
        stage: of all readings.
        statistics: of each site.
        histograms: of each site; None where there is none.
    """

    stage: Stage
    statistics: Table
    histograms: Sequence[Histogram | None]

    def at(self, rows: list[int]) -> "Results":
        """The same of some of the sites."""
        names, values, is_there = self.statistics
        table = Table(names, values[rows], is_there[rows])
        return Results(self.stage, table, [self.histograms[row] for row in rows])


class Readings(Mapping[Site, Reading]):
    """The readings of one flush by site, in the order in which the sites were measured first.

    Most are only looked at in `rows` and `results`: to make an object of each costs more than all else in a flush.

    Args:
        places: which row belongs to which site.
        rows: shape (sites, WIDTH or more), float64; more is what stands behind the moments.
        channels: the rows of the channels of each site, see `Reading.channels`.
        dtypes: of the tensors of each site, see `Reading.dtype`.
        widths: how many channels each site has, see `Reading.width`.
        compute: computes the results of all sites when somebody asks.
        made: the readings, where there are some without results.
    """

    def __init__(
        self,
        places: Places,
        rows: np.ndarray,
        channels: Sequence[np.ndarray | None],
        dtypes: Sequence[torch.dtype | None],
        widths: Sequence[int],
        compute: Callable[[], Results] | None,
        made: Sequence[Reading] = (),
    ) -> None:
        self.places = places
        """Which row belongs to which site."""
        self.rows = rows[:, :WIDTH]
        """The moments of each site, shape (sites, columns of `hookboard.measure.FIELDS`), float64."""
        self.channels = channels
        """The rows of the channels of each site; None where there are none."""
        self.dtypes = dtypes
        """Of the tensors of each site; None if unknown."""
        self.widths = widths
        """How many channels each site has, with or without a row."""
        self._compute = compute
        self._results: Results | None = None
        self.is_finite = np.asarray((self.rows[:, _NONFINITE] == 0).all(axis=1))
        """Whether all values of a site are finite, shape (sites,)."""
        self._made: dict[int, Reading] = dict(enumerate(made))
        self._numbers: dict[int, Numbers] = {}

    @staticmethod
    def of(readings: Iterable[Reading]) -> "Readings":
        """The table of these readings."""
        made = list(readings)
        rows = np.array([reading.moments for reading in made], dtype=np.float64).reshape(-1, WIDTH)
        places = Places([reading.site for reading in made])
        channels, dtypes = [reading.channels for reading in made], [reading.dtype for reading in made]
        return Readings(places, rows, channels, dtypes, [reading.width for reading in made], None, made)

    @property
    def results(self) -> Results | None:
        """The statistics and histograms of all sites; None if only readings were given."""
        compute = self._compute
        if compute is not None:
            self._results = compute()
            self._compute = None  # it holds all that was measured
        return self._results

    def numbers(self, row: int) -> Numbers:
        """The numbers of a row."""
        found = self._numbers.get(row)
        if found is None:
            moments = Moments._make(self.rows[row].tolist())
            found = self._numbers[row] = Numbers(moments, self.channels[row], self.dtypes[row], self.widths[row])
        return found

    def at(self, row: int) -> Reading:
        """The reading of a row."""
        reading = self._made.get(row)
        if reading is None:
            results = self.results
            assert results is not None  # otherwise all readings were given
            reading = self._made[row] = Reading(
                self.places.sites[row],
                Moments(*self.rows[row].tolist()),
                results.statistics.of(row),
                results.histograms[row],
                results.stage,
                channels=self.channels[row],
                dtype=self.dtypes[row],
                width=self.widths[row],
            )
        return reading

    def filled(self) -> "Readings":
        """Those that are not empty."""
        is_filled = (self.rows[:, _COUNT] > 0) | ~self.is_finite
        if is_filled.all():
            return self
        kept = np.flatnonzero(is_filled).tolist()
        sites = self.places.sites
        places = self.places.once("filled", tuple(kept), lambda: Places([sites[row] for row in kept]))
        channels, dtypes = ([part[row] for row in kept] for part in (self.channels, self.dtypes))
        widths = [self.widths[row] for row in kept]
        results = self.results
        if results is None:
            return Readings(places, self.rows[kept], channels, dtypes, widths, None, [self.at(row) for row in kept])
        return Readings(places, self.rows[kept], channels, dtypes, widths, lambda: results.at(kept))

    def __getitem__(self, site: Site) -> Reading:
        row = self.places.row(site)
        if row is None:
            raise KeyError(site)
        return self.at(row)

    def __iter__(self) -> Iterator[Site]:
        return iter(self.places.sites)

    def __len__(self) -> int:
        return len(self.places.sites)

    def __reduce__(self) -> tuple[Any, ...]:
        return Readings.of, (list(self.values()),)
