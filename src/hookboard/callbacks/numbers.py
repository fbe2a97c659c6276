"""Callbacks that log numbers: `ActivationLogger`, `GradientLogger`, `ParameterLogger`, and their base, `SiteLogger`."""

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args

import numpy as np
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from hookboard.base.checks import check_switches, check_whole, chosen, wrong
from hookboard.base.messages import inform, rank_zero_warn
from hookboard.base.torch_private import forget_graphs
from hookboard.callbacks.measurement_state import (
    LayerRecorder,
    LossScale,
    MeasurementState,
    measure_gradients,
    measure_weights,
)
from hookboard.loops.callback import HookboardCallback, Selection, listed_gaps, names_in, why_no_step
from hookboard.loops.loop import Loop
from hookboard.measure.attention import AttentionWatch
from hookboard.measure.row import Moments, Reading, ReadingList, Readings
from hookboard.measure.statistics import DEFAULT, FORMULAS, Plan, Statistic, as_list, plan
from hookboard.measure.table import Table
from hookboard.measure.taps import Taps
from hookboard.model.layers import ChannelDims, layers_of
from hookboard.model.selection import check_selection, named_submodules, select
from hookboard.model.sites import ATTENTION_ROLES, ROLES, Role, Stage
from hookboard.model.state import are_unchanged, weights_of
from hookboard.writers.entry import Entry

V = TypeVar("V", bound=MeasurementState)

_NO_READINGS = ReadingList()

Gaps = Mapping[tuple[str, Role], str]
"""Why a site may have nothing to measure, by its name and role."""


class SiteLogger(HookboardCallback[V]):
    """Base of callbacks that log a reading per site in each due step and evaluation; a subclass adds `_roles`."""

    verb = "measures"
    state_class: type[V] = MeasurementState  # type: ignore[assignment]  # a subclass with another V sets it

    def __init__(
        self,
        modules: str | Sequence[str] | None,
        types: str | type | Sequence[str | type] | None,
        every_n_steps: int | None,
        statistics: str | Sequence[str | Statistic],
        histogram: bool,
        sync_dist: bool,
        stages: Stage | Sequence[Stage] = "train",
    ) -> None:
        super().__init__()
        check_selection(modules, types)
        check_switches(histogram=histogram, sync_dist=sync_dist)
        otherwise = "to follow the Trainer's log_every_n_steps"
        check_whole("every_n_steps", every_n_steps, of="optimizer steps", otherwise=otherwise)
        chosen("stages", stages, get_args(Stage))
        if not as_list(statistics) and not histogram:
            raise wrong("statistics", statistics, "at least one statistic, or histogram=True")
        self.modules = modules
        self.types = types
        self.every_n_steps = every_n_steps
        self.statistics = statistics
        self.histogram = histogram
        self.sync_dist = sync_dist
        self.stages = stages
        self._readings: Iterable[Reading] = _NO_READINGS
        self._plan()

    @property
    def readings(self) -> ReadingList:
        """The merged readings of the last due step or evaluation loop, but none of sites with only empty tensors.

        With several ranks, during a fit, it returns the last readings that were merged, without waiting for others.
        """
        self._catch_up()
        if not isinstance(self._readings, ReadingList):  # they are made at the first request
            self._readings = ReadingList(self._readings)
        return self._readings

    # What a subclass may override.

    @abstractmethod
    def _roles(self) -> Sequence[Role]:
        """Return which tensors of the selected modules are measured."""

    def _plan(self) -> Plan:
        """Return what is to be measured for the argument `statistics`; ValueError if one is unknown."""
        return plan(self.statistics)

    def _complete(self, found: Readings) -> Readings:
        """Compute what needs the readings of several sites, such as ratios; a subclass may override this."""
        return found

    # What it does at each point of a run, see `hookboard.loops.callback`.

    def _reset(self) -> None:
        self._readings = _NO_READINGS

    def _stages(self, loop: Loop) -> list[Stage]:
        return chosen("stages", self.stages, get_args(Stage))

    def _is_collective(self, loop: Loop) -> bool:
        return self.sync_dist

    def _merges(self, loop: Loop) -> bool:
        return loop.world_size > 1 and self.sync_dist

    def _cadence(self, loop: Loop) -> int:
        return loop.log_every_n_steps if self.every_n_steps is None else self.every_n_steps

    def _prepare(self, loop: Loop, state: V) -> None:
        state.roles = self._roles()
        state.table = self._table(loop, state)
        state.layer_record = next((other.layer_record for other in self._live.values()), LayerRecorder(self._name))
        if any(ROLES[role].is_gradient for role in state.roles):
            scaler = loop.scaler
            state.loss_scale = LossScale(scaler) if scaler is not None and scaler.is_enabled() else None

    def _table(self, loop: Loop, state: V) -> Table:
        resolved = self._plan()
        how: dict[str, Any] = {"stage": state.stage, "histogram": self.histogram, "ranks": self._ranks}
        if resolved.needs("channels"):
            modules = {"": loop.model, **dict(named_submodules(loop.model))}
            weights = {name: weight for name, weight in weights_of(modules).items() if not is_lazy(weight)}
            channels = ChannelDims(layers_of(modules, weights))
            how |= {"channels": channels, "opened": channels.follow}
        return Table(resolved, loop.device, **how)

    def _attach(self, loop: Loop, state: V) -> None:
        # Graphs that are compiled already ignore new hooks.
        forget_graphs()
        inside = [role for role in state.roles if role in ATTENTION_ROLES]
        roles = [role for role in state.roles if not ROLES[role].of_parameter and role not in inside]
        modules, observer = state.selection.modules, state.table.open
        if inside:
            names = {**modules, **state.selection.owners}
            state.attention = AttentionWatch(loop.model, names, inside, state.table)
        state.taps = Taps(modules, roles, observer, in_graphs=True, model=loop.model)
        state.until_end.callback(state.taps.detach)
        state.taps.attach()
        state.weights = weights_of(state.selection.owners)
        state.table.forget_shapes()
        state.layer_record.facts = None

    def _leave(self, state: V) -> None:
        state.end_step()  # also if Ctrl-C has come in the middle of a batch's end, or of this

    def _begin_batch(self, loop: Loop, state: V, batch: Any, batch_idx: int) -> None:
        state.until_batch_end.callback(state.end_step)
        state.begin_step()

    def _before_backward(self, loop: Loop, state: V, loss: Tensor | None) -> None:
        if state.loss_scale is not None:
            state.table.scale = state.loss_scale.in_force()  # the gradients of this backward pass are divided by it

    def _after_backward(self, loop: Loop, state: V) -> None:
        state.table.scale = None

    def _before_optimizer_step(self, loop: Loop, state: V, optimizer: Optimizer) -> None:
        self._follow_weights(state)
        if state.loss_scale is not None:
            state.table.scale = state.loss_scale.before_step(optimizer)
        if "parameter_grad" in state.roles:
            measure_gradients(state.table, optimizer, state.weights)
        state.table.scale = None
        if "parameter_update" in state.roles:
            state.before.keep(optimizer, state.weights, state.table)

    def _end_batch(self, loop: Loop, state: V, has_stepped: bool) -> None:
        if state.stage == "train" and has_stepped:
            if state.weights:
                measure_weights(state.table, state.weights, state.before, state.roles)
                state.before.clear()
            self._log(loop, state)

    def _end_evaluation(self, loop: Loop, state: V) -> None:
        self._log(loop, state)

    def _end_training(self, loop: Loop, state: V) -> None:
        if state.has_logged:
            return
        no_loop = f"the fit ran no {state.stage} loop after its start"
        why = why_no_step(loop, state.every_n_steps) if state.stage == "train" else no_loop
        inform(f"{self._name} measured nothing in {state.stage}: {why}.")

    def _follow_weights(self, state: V) -> None:
        """Watch the parameters that modules have now; during forward and backward sharded ones would have others."""
        owners = state.selection.owners
        if not owners or are_unchanged(state.weights, owners):
            return
        before, state.weights = state.weights, weights_of(owners)
        if not all(weight is before.get(name) for name, weight in state.weights.items()):
            state.layer_record.facts = None
            self._say_changed()

    def _send(self, loop: Loop, state: V, along: Tensor | None = None) -> Callable[[], Readings]:
        if state.loss_scale is None:
            return state.table.send(None, along)
        return state.loss_scale.send(state.table, loop.device, along)

    def _log(self, loop: Loop, state: V) -> None:
        """Send what was measured in the step or loop, and write it when it has arrived."""
        model, step, writes, layer_record = loop.model, loop.logged_step, loop.is_rank_zero, state.layer_record
        facts = layer_record.known(model, state.selection)
        is_first, state.has_logged = not state.has_logged, True
        causes = state.why_nothing() if is_first else {}  # now, as the model may change before the readings arrive
        sent = self._send(loop, state)

        def write() -> None:
            with self._all_ranks_at(f"{state.stage} {step}"):
                readings = sent()
            readings = self._complete(readings)
            self._readings = readings.values()
            if writes:
                records = layer_record.record(readings.places, facts, state.table, state.every_n_steps)
                state.loggers.write(Entry(step, readings.scalars(), readings.with_histogram(), records=records))
            if causes:
                where = f"at step {step}" if state.stage == "train" else f"in the {state.stage} loop at step {step}"
                self._name_gaps(state, where, readings, causes, names_in(model))

        self._do_later(state, write)

    def _name_gaps(self, state: V, where: str, readings: Readings, causes: Gaps, among: Sequence[str]) -> None:
        """Warn about all sites without a reading, grouped by cause, of those of `MeasurementState.why_nothing`."""
        seen = {(site.name, site.role) for site in readings}
        gaps = []
        for (name, role), cause in causes.items():
            if (name, role) not in seen:
                off = state.table.is_off(name, role)
                gaps.append((name, role, "switched off (see the warning above)" if off else cause))
        if gaps:
            said = listed_gaps(gaps, among)
            rank_zero_warn(
                f"{self._name}: {len(gaps)} of {len(causes)} sites had nothing to measure {where} (shown once):{said}"
            )


ActivationRole = Literal["output", "input", "attention_logit", "attention_entropy"]


class ActivationLogger(SiteLogger[MeasurementState]):
    """Logs statistics, and optionally histograms, of the outputs and inputs of the selected modules.

    Everything that a module returns during one optimizer step counts as one set of numbers, across all elements, calls
    and micro-batches. It is read in the forward hook, before an in-place operation can change it. Tags are
    `activation_<statistic>/<module>` for outputs and `input_<statistic>/<module>` for inputs, `activations/<module>`
    and `inputs/<module>` for histograms. If a module takes or returns several tensors, each has its own numbers, and
    `/<index or key>` follows the module's name. Tags of stages other than training begin with the stage:
    `validate_activation_std/<module>`. If a module is replaced during the fit, the new one is watched from the next
    logged step on, and a warning says so.

    `dead_fraction` exists only for tensors with channels; if there are more than 1024, it uses every k-th.

    Args:
        modules: Pattern or patterns for dotted module names, relative to the LightningModule. `*` matches within one
            name, `**` across dots; a leading `!` excludes, and a leading `re:` marks a regular expression. Default:
            every leaf module, or, with `types`, every module of those types.
        types: Class names (`Conv2d`, `torch.nn.Linear`) or classes; subclasses count, and a leading `!` excludes.
        roles: Which tensors are measured, one name or several. Here: `output` (what a module returns) and `input` (what
            it takes). Also, for up to 64 queries of the first sequence in each call of torch's
            `scaled_dot_product_attention`, `attention_logit` (the largest logit of a query) and `attention_entropy` (of
            its weights, in nats). A call belongs to the module that makes it: a selected module, or one inside or
            around it. The logit of a query that is fully masked is -Inf, and so is the entropy of one that sees fewer
            than two keys. Calls in compiled graphs are not seen.
        every_n_steps: Optimizer steps between measurements, 1 or more. Default: the Trainer's `log_every_n_steps`.
        statistics: Names of statistics, or your own (a `hookboard.Statistic` or the dotted path to one). Those from
            `p01` on take extra time, but only where you ask for them. Quantiles (`p01` and so on) are off by at most
            half the width of a bin, 1/32 of the value.
            The names are `mean std var min max abs_max abs_mean rms l1 l2 zero_fraction nonfinite_count nan_count
            inf_count p01 p50 p99 dead_fraction underflow_fraction fp16_underflow_fraction headroom`.
            Default: `mean`, `std`, `abs_max`, `zero_fraction` and `nonfinite_count`.
        histogram: Whether to log histograms too; with `statistics=[]`, only histograms are logged. They cost about as
            much as all statistics together.
        sync_dist: Whether all ranks measure and merge their measurements, as if one process had seen all their data.
            Otherwise, rank 0 logs its own measurements.
        stages: In which stages, one or several of `train`, `validate`, `test` and `predict`. Here, `validate` stands
            for validation both within a fit and in `Trainer.validate`, and each evaluation gives one reading over all
            its batches.

    Raises:
        ValueError: At construction: an unknown statistic, role or stage, or an `every_n_steps` below 1. At fit start: a
            pattern or type that matches no module of the model.

    Examples:
        >>> ActivationLogger("backbone.layer*.**", types="Conv2d", statistics=["std", "abs_max"]).modules
        'backbone.layer*.**'
    """

    def __init__(
        self,
        modules: str | Sequence[str] | None = None,
        *,
        types: str | type | Sequence[str | type] | None = None,
        roles: ActivationRole | Sequence[ActivationRole] = "output",
        every_n_steps: int | None = None,
        statistics: str | Sequence[str | Statistic] = DEFAULT,
        histogram: bool = False,
        sync_dist: bool = True,
        stages: Stage | Sequence[Stage] = "train",
    ) -> None:
        super().__init__(modules, types, every_n_steps, statistics, histogram, sync_dist, stages)
        self.roles = roles
        self._roles()

    def _roles(self) -> list[ActivationRole]:
        return chosen("roles", self.roles, get_args(ActivationRole))

    def _select(self, model: nn.Module) -> Selection:
        return Selection(select(model, self.modules, self.types))


GradientRole = Literal["grad_output", "grad_input", "parameter_grad"]


class GradientLogger(SiteLogger[MeasurementState]):
    """Logs statistics, and optionally histograms, of gradients at the selected modules.

    They are gradients of the loss that Lightning backpropagates, which has been divided by k if
    `accumulate_grad_batches=k`. The scale of a GradScaler is divided out. If the gradients of an optimizer overflow,
    the scaler skips its step; all gradients of the step are then logged with their `nonfinite_count`, and NaN for all
    other statistics (a triangle in TensorBoard).

    `grad_output` is the gradient with respect to the module's output. `grad_input` is the gradient that the module
    passes back to its inputs; if an input is also used elsewhere (a residual branch), it is only this module's part of
    the input's gradient. `parameter_grad` is the gradient of each of its parameters when the optimizer steps:
    accumulated, unscaled, not yet clipped by Lightning.

    Tags are `gradient_<statistic>/<module>`, `input_gradient_<statistic>/<module>` and
    `parameter_gradient_<statistic>/<parameter>`; `gradients/`, `input_gradients/` and `parameter_gradients/` for
    histograms. If a module is replaced during the fit, the new one is watched from the next logged step on, and a
    warning says so.

    `underflow_fraction` and `headroom` compare the gradient, its scale divided out, with the limits of the dtype in
    which autograd returned it.

    Args:
        modules: Pattern or patterns for dotted module names, relative to the LightningModule. `*` matches within one
            name, `**` across dots; a leading `!` excludes, and a leading `re:` marks a regular expression. Default:
            every leaf module (for `parameter_grad`, every module that owns parameters, including the LightningModule
            itself, `""`), or, with `types`, every module of those types.
        types: Class names (`Conv2d`, `torch.nn.Linear`) or classes; subclasses count, and a leading `!` excludes.
        roles: Which tensors are measured, one name or several. Here: `grad_output`, `grad_input` and `parameter_grad`.
        every_n_steps: Optimizer steps between measurements, 1 or more. Default: the Trainer's `log_every_n_steps`.
        statistics: Names of statistics, or your own (a `hookboard.Statistic` or the dotted path to one). Those from
            `p01` on take extra time, but only where you ask for them. Quantiles (`p01` and so on) are off by at most
            half the width of a bin, 1/32 of the value.
            The names are `mean std var min max abs_max abs_mean rms l1 l2 zero_fraction nonfinite_count nan_count
            inf_count p01 p50 p99 dead_fraction underflow_fraction fp16_underflow_fraction headroom`.
            Default: `mean`, `std`, `abs_max`, `zero_fraction` and `nonfinite_count`.
        histogram: Whether to log histograms too; with `statistics=[]`, only histograms are logged. They cost about as
            much as all statistics together.
        sync_dist: Whether all ranks measure and merge their measurements, as if one process had seen all their data.
            Otherwise, rank 0 logs its own measurements.

    Raises:
        ValueError: At construction: an unknown statistic or role, or an `every_n_steps` below 1. At fit start: a
            pattern or type that matches no module, or `parameter_grad` for modules that own no parameter.

    Examples:
        >>> GradientLogger(types=["Conv2d", "Linear"], roles=["grad_output", "parameter_grad"]).roles
        ['grad_output', 'parameter_grad']
    """

    def __init__(
        self,
        modules: str | Sequence[str] | None = None,
        *,
        types: str | type | Sequence[str | type] | None = None,
        roles: GradientRole | Sequence[GradientRole] = "grad_output",
        every_n_steps: int | None = None,
        statistics: str | Sequence[str | Statistic] = DEFAULT,
        histogram: bool = False,
        sync_dist: bool = True,
    ) -> None:
        super().__init__(modules, types, every_n_steps, statistics, histogram, sync_dist)
        self.roles = roles
        self._roles()

    def _roles(self) -> list[GradientRole]:
        return chosen("roles", self.roles, get_args(GradientRole))

    def _select(self, model: nn.Module) -> Selection:
        roles, owners = self._roles(), {}
        hooked = {} if roles == ["parameter_grad"] else select(model, self.modules, self.types)
        if "parameter_grad" in roles:
            owners = select(model, self.modules, self.types, owning="parameters")
        return Selection(hooked, owners)


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

    def _chosen(self, among: Collection[str]) -> list[str]:
        statistics = [self.statistics] if isinstance(self.statistics, str | Statistic) else self.statistics
        return [name for name in among if name in statistics]

    def _plan(self) -> Plan:
        return plan([s for s in as_list(self.statistics) if s not in UPDATES], also_valid=UPDATES)

    def _roles(self) -> list[Role]:
        return ["parameter", "parameter_update"] if self._chosen(UPDATES) else ["parameter"]

    def _select(self, model: nn.Module) -> Selection:
        return Selection(owners=select(model, self.modules, self.types, owning="parameters"))

    def _complete(self, found: Readings) -> Readings:
        sites, values = found.places.sites, _values_of_updates(found)
        are_updates = [site.role == "parameter_update" for site in sites]

        def only(column: Iterable[float | None], of_updates: bool) -> list[float | None]:
            return [
                value if is_update == of_updates else None for value, is_update in zip(column, are_updates, strict=True)
            ]

        columns = {name: only(column, False) for name, column in found.statistics.items()}
        columns |= {name: only(values[name].tolist(), True) for name in self._chosen(UPDATES)}
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
