"""`ParameterLogger`: parameters, and their change in an optimizer step."""

import dataclasses
import math
from collections.abc import Collection, Iterable, Sequence

import numpy as np
from torch import nn

from hookboard.callbacks.measurement_state import MeasurementState
from hookboard.callbacks.numbers import SiteLogger
from hookboard.loops.callback import Selection
from hookboard.measure.readings import Readings
from hookboard.measure.row import Moments
from hookboard.measure.statistics import FORMULAS, Plan, Statistic, as_list, plan
from hookboard.model.selection import select
from hookboard.model.sites import Role

USUAL = ("update_norm", "update_ratio")

UPDATES = (*USUAL, "unchanged_fraction")
"""Names of statistics that only `ParameterLogger` has."""


class ParameterLogger(SiteLogger[MeasurementState]):
    """Logs statistics, and optionally histograms, of parameters, and how far the optimizer moved them.

    Statistics are taken of the parameter after the optimizer step. `update_norm` is the L2 norm of its change in that
    step, `||after - before||`, including the effects of learning rate, clipping and weight decay. `update_ratio` is
    `update_norm / ||before||`; a common rule of thumb is about 1e-3 in a healthy run. For a parameter that was all zero
    it is infinite, or NaN if the parameter has not moved. `unchanged_fraction` is the fraction of elements that are the
    same after the step as before. All three need a copy of the parameter during the logged step: of parameters beyond
    512 MiB on one rank they are not measured, but named.

    Of a weight that is pruned (`torch.nn.utils.prune`) or parametrized (spectral norm) the originals are logged, as
    `weight_orig`. Tags are
    `parameter_<statistic>/<parameter>`, and `parameters/<parameter>` for histograms. If a module or parameter is
    replaced during the fit, the new one is watched from the next logged step on, and a warning says so.

    Args:
        modules: Pattern or patterns for dotted module names, relative to the LightningModule. `*` matches within one
            name, `**` across dots; a leading `!` excludes, and a leading `re:` marks a regular expression. Default:
            every module that owns parameters, including the LightningModule itself, `""`, or, with `types`, every
            module of those types. Their own parameters are logged, not those of their submodules.
        types: Class names (`Conv2d`, `torch.nn.Linear`) or classes; subclasses count, and a leading `!` excludes.
        every_n_steps: Optimizer steps between measurements, 1 or more. Default: the Trainer's `log_every_n_steps`.
        statistics: Names of statistics, or your own (a `hookboard.Statistic` or the dotted path to one). Those from
            `p01` on take extra time, but only where you ask for them. Quantiles (`p01` and so on) are off by at most
            half the width of a bin, 1/32 of the value.
            The names are `mean std var min max abs_max abs_mean rms l1 l2 zero_fraction nonfinite_count nan_count
            inf_count p01 p50 p99 dead_fraction underflow_fraction fp16_underflow_fraction headroom`.
            Here, also `update_norm`, `update_ratio` and `unchanged_fraction`. Default: `mean`, `std`, `abs_max`,
            `update_norm` and `update_ratio`.
        histogram: Whether to log histograms too; with `statistics=[]`, only histograms are logged. They cost about as
            much as all statistics together.
        sync_dist: Whether all ranks measure and merge their measurements, as if one process had seen all their data.
            Otherwise, rank 0 logs its own measurements.

    Raises:
        ValueError: At construction: an unknown statistic, or an `every_n_steps` below 1. At fit start: a pattern
            or type that matches no module, or none that owns a parameter.

    Examples:
        >>> ParameterLogger("head", statistics=["l2", "update_ratio"]).statistics
        ['l2', 'update_ratio']
    """

    def __init__(
        self,
        modules: str | Sequence[str] | None = None,
        *,
        types: str | type | Sequence[str | type] | None = None,
        every_n_steps: int | None = None,
        statistics: str | Sequence[str | Statistic] = ("mean", "std", "abs_max", *USUAL),
        histogram: bool = False,
        sync_dist: bool = True,
    ) -> None:
        super().__init__(modules, types, every_n_steps, statistics, histogram, sync_dist)

    def _asked(self, among: Collection[str]) -> list[str]:
        """Return those names of `among` that are in `statistics`, given or by default."""
        given = [self.statistics] if isinstance(self.statistics, str | Statistic) else self.statistics
        return [name for name in among if name in given]

    def _plan(self) -> Plan:
        return plan([s for s in as_list(self.statistics) if s not in UPDATES], also_valid=UPDATES)

    def _roles(self) -> list[Role]:
        return ["parameter", "parameter_update"] if self._asked(UPDATES) else ["parameter"]

    def _select(self, model: nn.Module) -> Selection:
        return Selection(owners=select(model, self.modules, self.types, owning="parameters"))

    def _finish(self, found: Readings) -> Readings:
        sites, values = found.places.sites, _values_of_updates(found)
        are_updates = [site.role == "parameter_update" for site in sites]

        def only(column: Iterable[float | None], of_updates: bool) -> list[float | None]:
            return [
                value if is_update == of_updates else None for value, is_update in zip(column, are_updates, strict=True)
            ]

        columns = {name: only(column, False) for name, column in found.statistics.items()}
        columns |= {name: only(values[name].tolist(), True) for name in self._asked(UPDATES)}
        is_kept = np.array([site.role != "parameter_before" for site in sites], bool)
        return dataclasses.replace(found, statistics=columns).where(is_kept)


def _values_of_updates(found: Readings) -> dict[str, np.ndarray]:
    """Return each statistic of `UPDATES` by name, shape (sites,); valid only in rows of role `parameter_update`."""
    moments, names = Moments(*found.rows.T), [site.name for site in found]
    with np.errstate(all="ignore"):
        norm = FORMULAS["l2"].value(moments)
        before = norm[found.places.rows("parameter_before", names)]
        return {
            "update_norm": norm,
            "update_ratio": np.where(before == 0, np.where(norm > 0, math.inf, math.nan), norm / before),
            "unchanged_fraction": FORMULAS["zero_fraction"].value(moments),
        }
