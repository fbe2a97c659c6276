"""Statistics by name: formulas over a row, its bins or its channels; `Statistic` for the user's own, and `plan`."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hookboard.base.checks import check_differ, check_function, check_identifier, check_name, object_at, several
from hookboard.base.messages import unknown
from hookboard.measure.row import FIELDS, NONFINITE, Moments, count_below, elements_in, quantile

_COUNT, _ZEROS = map(FIELDS.index, ("count", "zeros"))


AxisScale = Literal["log", "linear"]


class MergedSite(NamedTuple):
    """What was measured of one site in a step; bins have shape (BINS,), channels (channels, WIDTH)."""

    moments: Moments
    bins: np.ndarray | None
    channels: np.ndarray | None
    dtype: torch.dtype | None


class Formula(NamedTuple):
    """How a built-in statistic is computed.

    Args:
        value: of `Moments` of arrays, without NumPy's warnings; in `DERIVED` of a `MergedSite`, None if that has none.
        about: its formula, or a definition in words, for docs/statistics.md.
        scale: the scale of a chart's axis that suits its values.
    """

    value: Callable[[Any], Any]
    about: str
    scale: AxisScale = "linear"
    needs: Literal["", "bins", "channels"] = ""


def _quantile(share: float, merged: MergedSite) -> float | None:
    low, high = merged.moments.min, merged.moments.max
    return None if merged.bins is None else quantile(merged.bins, low, high, share)


def _dead_fraction(merged: MergedSite) -> float | None:
    """Return the share of channels with only zeros among those with a finite value; NaN if there are none of these."""
    channels = merged.channels
    if channels is None:
        return None
    finite = channels[:, _COUNT]
    seen = finite > 0
    dead = (channels[:, _ZEROS] == finite) & (channels[:, NONFINITE].sum(axis=1) == 0)
    return float(np.mean(dead[seen])) if seen.any() else math.nan


def _underflow(dtype: torch.dtype | None, merged: MergedSite) -> float | None:
    """Return the share of nonzero values below the smallest normal number of a dtype, or of the site's."""
    of = dtype or merged.dtype
    if merged.bins is None or of is None or not of.is_floating_point or of is torch.float64:
        return None
    nonzero = merged.moments.count - merged.moments.zeros
    small = count_below(merged.bins, torch.finfo(of).tiny) - merged.moments.zeros
    return small / nonzero if nonzero else math.nan


def _headroom(merged: MergedSite) -> float | None:
    if merged.dtype is None or not (merged.dtype.is_floating_point or merged.dtype.is_complex):
        return None
    m = merged.moments
    if not m.count:
        return math.nan
    largest = max(abs(m.min), abs(m.max))
    return math.log2(torch.finfo(merged.dtype).max) - math.log2(largest) if largest else math.inf


_FROM_BINS = "from the bins of the histogram ([how exact](#how-exact-quantiles-are))"

_of_bins = partial(Formula, needs="bins")

DERIVED: dict[str, Formula] = {
    "p01": _of_bins(partial(_quantile, 0.01), f"the 0.01 quantile, {_FROM_BINS}"),
    "p50": _of_bins(partial(_quantile, 0.50), f"the 0.5 quantile, {_FROM_BINS}"),
    "p99": _of_bins(partial(_quantile, 0.99), f"the 0.99 quantile, {_FROM_BINS}"),
    "dead_fraction": Formula(
        _dead_fraction,
        "fraction of the [channels](#channels) (units) that are 0 at every position of every sample in the step",
        needs="channels",
    ),
    "underflow_fraction": _of_bins(
        partial(_underflow, None),
        "fraction of the nonzero `x` with `abs(x)` below the dtype's smallest normal number (not for float64)",
    ),
    "fp16_underflow_fraction": _of_bins(
        partial(_underflow, torch.float16),
        "fraction of values that float16 would round more coarsely or to 0, regardless of the tensor's dtype",
    ),
    "headroom": Formula(
        _headroom,
        "`log2(largest finite number of the dtype / max(abs(x)))`: how many doublings are left before "
        "overflow; infinite if all values are 0",
    ),
}
"""The built-in statistics that need more than the moments, by name."""


DEFAULT = ("mean", "std", "abs_max", "zero_fraction", "nonfinite_count")


def _std(m: Moments) -> Any:
    return m.deviation * np.sqrt(m.count / np.maximum(m.count - 1, 1)) * (m.count > 1)


def _of_finite(value: Callable[[Moments], Any], about: str, scale: AxisScale = "linear") -> Formula:
    """Make a `Formula` that is NaN where a site has no finite value."""
    return Formula(lambda m: np.where(m.count != 0, value(m), math.nan), about, scale)


FORMULAS: dict[str, Formula] = {
    "mean": _of_finite(lambda m: m.mean, "`sum(x) / n`"),
    "std": _of_finite(_std, "the square root of `var`", "log"),
    "var": _of_finite(
        lambda m: _std(m) * _std(m), "`sum((x - mean)²) / (n - 1)` as in `torch.var`; 0 for a single value", "log"
    ),
    "min": _of_finite(lambda m: m.min, "the smallest `x`"),
    "max": _of_finite(lambda m: m.max, "the largest `x`"),
    "abs_max": _of_finite(lambda m: np.maximum(abs(m.min), abs(m.max)), "the largest `abs(x)`", "log"),
    "abs_mean": _of_finite(lambda m: m.abs_mean, "`sum(abs(x)) / n`", "log"),
    "rms": _of_finite(lambda m: m.rms, "`sqrt(sum(x²) / n)`", "log"),
    "l1": _of_finite(lambda m: m.abs_mean * m.count, "`sum(abs(x))`", "log"),
    "l2": _of_finite(lambda m: m.rms * np.sqrt(m.count), "`sqrt(sum(x²))`", "log"),
    "zero_fraction": _of_finite(lambda m: m.zeros / m.count, "number of `x == 0`, divided by `n`"),
    "nonfinite_count": Formula(lambda m: m.nonfinite, "number of values that are NaN or infinite"),
    "nan_count": Formula(lambda m: m.nan, "number of values that are NaN"),
    "inf_count": Formula(lambda m: m.posinf + m.neginf, "number of values that are infinite"),
}
"""The built-in statistics that follow from the moments alone, by name; `DERIVED` has the others."""

OF_ABS_MEAN = frozenset({"abs_mean", "l1"})  # those that need the column `abs_mean`, which is measured only for them


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
            change (except of a subclass of Tensor whose `clone` gives another class). The function runs inside the
            training step, so it should not call `.item()` on an accelerator. It must handle NaN and infinities in the
            tensor itself. Random numbers that it draws with torch do not change those of the training; for Python's or
            NumPy's, use a generator of your own. If it raises, the site is switched off with a warning, and training
            goes on.
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


def own_numbers(statistics: Sequence[Statistic], tensor: Tensor) -> Tensor:
    """Return what each statistic's function gives for the tensor, for `joined`: shape (statistics,), float64."""
    tensor, found = tensor.detach(), []
    device = tensor.device
    accelerators, kind = ([], "cuda") if device.type == "cpu" else ([device], device.type)
    # Random states and grad mode are as before afterwards, whatever a function does to them.
    with torch.random.fork_rng(accelerators, device_type=kind), torch.set_grad_enabled(torch.is_grad_enabled()):
        for statistic in statistics:
            # A copy for each: one that works in place would change the training, and what the next one sees.
            # Where `clone` of a subclass gives a plain tensor, the function gets the tensor itself.
            copy = tensor.clone()
            argument = copy if type(copy) is type(tensor) else tensor
            number = torch.as_tensor(statistic.measure(argument), dtype=torch.float64, device=device)
            if number.numel() != 1:
                raise ValueError(f"the statistic {statistic.name!r} returned {number.numel()} numbers, not one")
            found.append(number.detach().reshape(()) * (tensor.numel() if statistic.merge == "mean" else 1))
    return torch.stack(found)


def joined(statistics: Sequence[Statistic], numbers: Tensor, others: Tensor) -> Tensor:
    """Merge numbers of the user's statistics with others, shape (..., statistics) each."""
    # Those of `mean` are multiplied by how many elements each tensor has: they are added up, and divided at the end.
    merged = numbers + others
    for place, statistic in enumerate(statistics):
        if statistic.merge in ("min", "max"):  # NaN stays NaN
            larger = torch.minimum if statistic.merge == "min" else torch.maximum
            merged[..., place] = larger(numbers[..., place], others[..., place])
    return merged


@dataclass(frozen=True)
class Plan:
    """What to measure for the argument `statistics=` of one callback: built-in ones by name, and the user's own."""

    names: tuple[str, ...]
    own: tuple[Statistic, ...] = ()

    @property
    def with_abs_mean(self) -> bool:
        """Whether the column `abs_mean` is measured."""
        return not OF_ABS_MEAN.isdisjoint(self.names)

    def needs(self, what: Literal["bins", "channels"]) -> bool:
        """Return True if a statistic is computed from the bins, or from the rows of channels."""
        return any(what == DERIVED[name].needs for name in self.names if name in DERIVED)

    @property
    def neutral(self) -> list[float]:
        """What each of the user's statistics merges with and stays as it is."""
        return [{"min": math.inf, "max": -math.inf}.get(statistic.merge, 0.0) for statistic in self.own]

    def values(
        self,
        rows: np.ndarray,
        own: np.ndarray,
        bins: Sequence[np.ndarray | None],
        channels: Sequence[np.ndarray | None],
        dtypes: Sequence[torch.dtype | None],
    ) -> dict[str, list[float | None]]:
        """Compute all statistics by name, of columns with an entry for each site; None for a site that has none."""
        moments, elements, columns = Moments(*rows.T), elements_in(rows), dict[str, list[float | None]]()
        merged: list[MergedSite] = []
        if any(name in DERIVED for name in self.names):
            merged = [*map(MergedSite, (Moments(*row) for row in rows.tolist()), bins, channels, dtypes)]
        with np.errstate(all="ignore"):
            for name in self.names:
                derived = DERIVED.get(name)
                columns[name] = [*map(derived.value, merged)] if derived else FORMULAS[name].value(moments).tolist()
            for statistic, column in zip(self.own, own.T, strict=True):
                column = column / elements if statistic.merge == "mean" else column
                columns[statistic.name] = np.where(elements > 0, column, math.nan).tolist()
        return columns


def plan(statistics: str | Statistic | Sequence[str | Statistic], also_valid: Sequence[str] = ()) -> Plan:
    """Make the `Plan` for the argument `statistics=`; the caller measures `also_valid`, which errors list too."""
    several = as_list(statistics)
    own = [s if isinstance(s, Statistic) else _at_path(s, also_valid) for s in several if not _is_built_in(s)]
    check_differ("statistics", several, [*(statistic.name for statistic in own), *also_valid])
    names = tuple(dict.fromkeys(s for s in several if isinstance(s, str) and _is_built_in(s)))
    return Plan(names, tuple(own))


def as_list(statistics: str | Statistic | Sequence[str | Statistic]) -> list[str | Statistic]:
    """Return the argument `statistics=` as a list; a ValueError if one of them is neither a name nor a `Statistic`."""
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
