"""Statistics by name: formulas of the statistics that follow from a row, `Statistic` for the user's own, and `plan`."""

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hookboard.base.checks import check_differ, check_function, check_identifier, check_name, object_at, several
from hookboard.base.messages import Named, unknown
from hookboard.measure.columns import Columns, width_of
from hookboard.measure.derived import DERIVED, AxisScale, MergedSite
from hookboard.measure.rounds import Merging, once, together
from hookboard.measure.row import WIDTH, Moments, elements_in
from hookboard.measure.values import Values

DEFAULT = ("mean", "std", "abs_max", "zero_fraction", "nonfinite_count")


class Formula(NamedTuple):
    """How a built-in statistic is computed that follows from the moments alone.

    Args:
        needs: the columns of `REQUESTABLE` that it needs.
        value: of `Moments` of arrays over the sites; the caller silences NumPy's warnings with `np.errstate`.
        about: its formula, or a definition in words, for docs/statistics.md.
        scale: the scale of a chart's axis that suits its values.
    """

    needs: frozenset[str]
    value: Callable[[Moments], np.ndarray]
    about: str
    scale: AxisScale


def _std(m: Moments) -> Any:
    return m.deviation * np.sqrt(m.count / np.maximum(m.count - 1, 1)) * (m.count > 1)


def _formula(
    needs: str, value: Callable[[Moments], Any], about: str, scale: AxisScale = "linear", *, of_any: bool = True
) -> Formula:
    """Make a `Formula` that is NaN where a site has no finite value, unless it is `of_any`."""

    def guarded(m: Moments) -> np.ndarray:
        return np.where(m.count != 0, value(m), math.nan)

    return Formula(frozenset(needs.split()), guarded if of_any else value, about, scale)


FORMULAS: dict[str, Formula] = {
    "mean": _formula("mean", lambda m: m.mean, "`sum(x) / n`"),
    "std": _formula("mean deviation", _std, "the square root of `var`", "log"),
    "var": _formula(
        "mean deviation",
        lambda m: _std(m) * _std(m),
        "`sum((x - mean)²) / (n - 1)` as in `torch.var`; 0 for a single value",
        "log",
    ),
    "min": _formula("", lambda m: m.min, "the smallest `x`"),
    "max": _formula("", lambda m: m.max, "the largest `x`"),
    "abs_max": _formula("", lambda m: np.maximum(abs(m.min), abs(m.max)), "the largest `abs(x)`", "log"),
    "abs_mean": _formula("abs_mean", lambda m: m.abs_mean, "`sum(abs(x)) / n`", "log"),
    "rms": _formula("mean deviation", lambda m: m.rms, "`sqrt(sum(x²) / n)`", "log"),
    "l1": _formula("abs_mean", lambda m: m.abs_sum, "`sum(abs(x))`", "log"),
    "l2": _formula("mean deviation", lambda m: m.rms * np.sqrt(m.count), "`sqrt(sum(x²))`", "log"),
    "zero_fraction": _formula("zeros", lambda m: m.zeros / m.count, "number of `x == 0`, divided by `n`"),
    "nonfinite_count": _formula("", lambda m: m.nonfinite, "number of values that are NaN or infinite", of_any=False),
    "nan_count": _formula("", lambda m: m.nan, "number of values that are NaN", of_any=False),
    "inf_count": _formula("", lambda m: m.posinf + m.neginf, "number of values that are infinite", of_any=False),
}
"""The built-in statistics that follow from the moments alone, by name; `DERIVED` has the others."""


class StatisticTable(NamedTuple):
    """The statistics of many sites: a row for each site, a column for each statistic; NaN where it has none."""

    names: tuple[str, ...]
    values: np.ndarray
    is_there: np.ndarray

    @staticmethod
    def of(sites: Sequence[Mapping[str, float]]) -> "StatisticTable":
        """Make a table from one mapping for each site: names of its statistics to their values."""
        names = tuple(dict.fromkeys(name for statistics in sites for name in statistics))
        shape = len(sites), len(names)
        values = np.array([[given.get(name, np.nan) for name in names] for given in sites], np.float64)
        is_there = np.array([[name in given for name in names] for given in sites], bool)
        return StatisticTable(names, values.reshape(shape), is_there.reshape(shape))

    def at(self, row: int) -> dict[str, float]:
        """Return the statistics of one site by name; those that it does not have are left out."""
        found = zip(self.names, self.values[row].tolist(), self.is_there[row].tolist(), strict=True)
        return Named("statistic", ((name, value) for name, value, is_there in found if is_there))

    def where(self, is_kept: np.ndarray) -> "StatisticTable":
        """Return the statistics of some of the sites: those where `is_kept`, shape (sites,), is true."""
        return StatisticTable(self.names, self.values[is_kept], self.is_there[is_kept])

    def joined(self, columns: Mapping[str, np.ndarray], rows: np.ndarray) -> "StatisticTable":
        """Return a copy in which some columns, each of shape (sites,), are set in some rows. New columns are added."""
        names = tuple(dict.fromkeys([*self.names, *columns]))
        values, is_there = np.full((len(self.values), len(names)), np.nan), np.zeros((len(rows), len(names)), bool)
        values[:, : len(self.names)], is_there[:, : len(self.names)] = self.values, self.is_there
        for name, column in columns.items():
            place = names.index(name)
            values[rows, place], is_there[rows, place] = column[rows], True
        return StatisticTable(names, values, is_there)


@dataclass(frozen=True)
class Statistic:
    """A statistic of your own.

    It is computed from the whole tensor of each call. The numbers of several calls, micro-batches and ranks are merged
    by a rule that you choose. Pass it to `statistics=` together with built-in names; in YAML, use the dotted path of
    the variable that holds it (`my_package.NEAR_ZERO`).

    Args:
        name: Its name in tags: letters, digits and underscores.
        measure: A function that maps a tensor to one number (a tensor with one element, or a float). The tensor can
            have any shape and dtype, is detached, and is on the model's device. It is a copy, which the function may
            change. The function runs inside the training step, so it should not call `.item()` on an accelerator. It
            must handle NaN and infinities in the tensor itself. Random numbers that it draws with torch do not change
            those of the training; for Python's or NumPy's, use a generator of your own. If it raises, the site is
            switched off with a warning, and training goes on.
        merge: How the numbers of several calls become one: `mean` (weighted by the number of elements of each tensor),
            `sum`, `min` or `max`.

    Raises:
        ValueError: The name has other characters or is that of a built-in statistic, or `merge` is not one of the four.

    Examples:
        >>> import torch
        >>> near_zero = Statistic("near_zero", lambda x: (x.abs() < 0.05).float().mean(), merge="mean")
        >>> near_zero.measure(torch.tensor([0.01, 1.0]))
        tensor(0.5000)
    """

    name: str
    measure: Callable[[Tensor], Tensor | float]
    merge: Literal["mean", "sum", "min", "max"] = "mean"

    def __post_init__(self) -> None:
        check_identifier("name", self.name)
        if _is_built_in(self.name):
            raise ValueError(f"name={self.name!r} is already the name of a built-in statistic.")
        check_function("measure", self.measure, "a function that takes a tensor")
        check_name("merge", self.merge, ("mean", "sum", "min", "max"))


@dataclass(frozen=True)
class OwnColumns(Columns):
    """The user's statistics: one column for each, in their order."""

    statistics: tuple[Statistic, ...]

    @property
    def width(self) -> int:  # type: ignore[override]  # others know it beforehand
        """The number of statistics."""
        return len(self.statistics)

    def measure(self, tensor: Tensor, values: Values, row: Tensor, dim: int | None) -> Tensor:
        """Return what each statistic's function gives for a copy of the tensor, shape (width,).

        Where `clone` of a subclass gives a plain tensor, the function gets the tensor itself.

        Raises:
            ValueError: a function returned more than one number, or none.
            Exception: any error of a function.
        """
        device, found = tensor.device, []
        with _undisturbed(device):
            for statistic in self.statistics:
                # A copy for each: one that works in place would change the training, and what the next one sees.
                number = torch.as_tensor(statistic.measure(_copy(tensor)), dtype=torch.float64, device=device)
                if number.numel() != 1:
                    raise ValueError(f"the statistic {statistic.name!r} returned {number.numel()} numbers, not one")
                found.append(number.detach().reshape(()))
        return torch.stack(found)

    def merge(self, numbers: Tensor, rows: Tensor, owner: Tensor | slice, merged: Tensor) -> Merging[Tensor]:
        """Merge each column by its statistic's rule; NaN where no tensor had an element."""
        elements, total = elements_in(rows)[:, None], elements_in(merged)[:, None]
        columns = zip(self.statistics, numbers.split(1, dim=1), strict=True)
        merges = (_by_rule(statistic.merge, given, elements, total[owner]) for statistic, given in columns)
        found = torch.cat((yield from together(*merges)), dim=1)
        return found.where(total != 0, math.nan)


def _by_rule(rule: str, given: Tensor, elements: Tensor, total: Tensor) -> Merging[Tensor]:
    """Merge one column by a rule of `Statistic.merge`. All are of shape (n, 1)."""
    is_there = elements != 0
    if rule in ("mean", "sum"):
        return (yield from once("sum", (given * (elements / total) if rule == "mean" else given).where(is_there, 0)))
    sign, is_nan = -1 if rule == "min" else 1, given.isnan()
    ends = (sign * given).where(is_there & ~is_nan, -math.inf)
    nans, ends = yield [("sum", (is_there & is_nan).to(given)), ("max", ends)]
    return (sign * ends).where(nans == 0, math.nan)


@dataclass(frozen=True)
class Plan:
    """What to measure for the argument `statistics=` of one callback; `wanted` may have `bins` and `channels` too."""

    names: tuple[str, ...]
    own: tuple[Statistic, ...]
    wanted: frozenset[str]

    @functools.cached_property
    def more(self) -> tuple[Columns, ...]:
        """The columns that follow the moments in a row: those of `own`."""
        return (OwnColumns(self.own),) if self.own else ()

    @property
    def width(self) -> int:
        """The number of columns of a row: the moments and what follows them."""
        return WIDTH + width_of(self.more)

    def with_histogram(self) -> "Plan":
        """Return a copy that also measures `mean` and `deviation`, which loggers write with a histogram."""
        return replace(self, wanted=self.wanted | {"mean", "deviation"})

    def values(
        self,
        moments: Moments,
        more: Sequence[float],
        *,
        bins: np.ndarray | None = None,
        channels: np.ndarray | None = None,
        dtype: torch.dtype | None = None,
    ) -> dict[str, float]:
        """Return the statistics of one site by name, without those that it does not have."""
        return self.table(np.array([[*moments, *more]], dtype=np.float64), [bins], [channels], [dtype]).at(0)

    def table(
        self,
        rows: np.ndarray,
        bins: Sequence[np.ndarray | None],
        channels: Sequence[np.ndarray | None],
        dtypes: Sequence[torch.dtype | None],
    ) -> StatisticTable:
        """Compute all statistics of the plan for many sites at once, from their merged rows, bins and channels."""
        moments, columns = Moments(*rows[:, :WIDTH].T), dict[str, Any]()
        merged: list[MergedSite] = []
        if any(name in DERIVED for name in self.names):
            of_sites = (Moments(*row) for row in rows[:, :WIDTH].tolist())
            merged = list(map(MergedSite, of_sites, bins, channels, dtypes))
        with np.errstate(all="ignore"):
            for name in self.names:
                derived = DERIVED.get(name)
                columns[name] = FORMULAS[name].value(moments) if derived is None else [*map(derived.value, merged)]
        own = rows[:, rows.shape[1] - len(self.own) :]
        columns.update({statistic.name: column for statistic, column in zip(self.own, own.T, strict=True)})
        values, is_there = np.empty((len(rows), len(columns))), np.ones((len(rows), len(columns)), dtype=bool)
        for place, (name, column) in enumerate(columns.items()):
            values[:, place] = column  # None becomes NaN
            if name in DERIVED:
                is_there[:, place] = [value is not None for value in column]
        return StatisticTable(tuple(columns), values, is_there)


def plan(statistics: str | Statistic | Sequence[str | Statistic], also_valid: Sequence[str] = ()) -> Plan:
    """Make the `Plan` for the argument `statistics=`: built-in names, dotted paths and `Statistic` objects.

    The caller measures `also_valid` itself: errors list them as valid, and no `Statistic` may have such a name.

    Raises:
        ValueError: a name is not that of a statistic, a path does not lead to a `Statistic`, or two `Statistic`s
            have the same name.
    """
    given = as_list(statistics)
    own = [s if isinstance(s, Statistic) else _at_path(s, also_valid) for s in given if not _is_built_in(s)]
    check_differ("statistics", given, [*(statistic.name for statistic in own), *also_valid])
    names = tuple(dict.fromkeys(s for s in given if isinstance(s, str) and _is_built_in(s)))
    wanted = frozenset[str]().union(*((FORMULAS.get(name) or DERIVED[name]).needs for name in names))
    return Plan(names, tuple(own), wanted)


def as_list(statistics: str | Statistic | Sequence[str | Statistic]) -> list[str | Statistic]:
    """Return the argument `statistics=` as a list, whether it is one statistic, several or none.

    Raises:
        ValueError: one of them is neither a name nor a `Statistic`.
    """
    if isinstance(statistics, list | tuple) and not statistics:
        return []
    valid = "the name of a statistic, a hookboard.Statistic('my_name', function), or a list of these"
    return several("statistics", statistics, (str, Statistic), valid)


def _is_built_in(statistic: str | Statistic) -> bool:
    return isinstance(statistic, str) and (statistic in FORMULAS or statistic in DERIVED)


def _at_path(path: str, also_valid: Sequence[str]) -> Statistic:
    if path.startswith("update_") and not also_valid:
        raise ValueError(f"statistics: only ParameterLogger measures {path!r}")
    if "." not in path:
        raise unknown("statistic", path, [*FORMULAS, *DERIVED, *also_valid])
    return object_at(path, Statistic, "statistic")


def _copy(tensor: Tensor) -> Tensor:
    copy = tensor.clone()
    # Cloning some subclasses gives a plain tensor; of these the user's function gets the tensor itself.
    return copy if type(copy) is type(tensor) else tensor


@contextmanager
def _undisturbed(device: torch.device) -> Iterator[None]:
    """Restore torch's random states of the CPU and of `device`, and the grad mode, when the context ends."""
    accelerators = [] if device.type == "cpu" else [device]
    kind = "cuda" if device.type == "cpu" else device.type
    with torch.random.fork_rng(accelerators, device_type=kind), torch.set_grad_enabled(torch.is_grad_enabled()):
        yield
