"""`SiteLogger`, the base of callbacks that log numbers: measures due steps, writes readings, names missing sites."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, get_args

from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from hookboard.base.checks import check_switches, check_whole, chosen, wrong
from hookboard.base.messages import inform, rank_zero_warn
from hookboard.base.torch_private import forget_graphs
from hookboard.callbacks.layer_news import LayerNews
from hookboard.callbacks.loss_scale import LossScale
from hookboard.callbacks.measurement_state import MeasurementState
from hookboard.callbacks.weights import measure_gradients, measure_weights
from hookboard.loops.callback import HookboardCallback, listed_gaps, names_in, why_no_step
from hookboard.loops.loop import Loop
from hookboard.measure.attention import AttentionWatch
from hookboard.measure.readings import Reading, ReadingList, Readings
from hookboard.measure.statistics import Plan, Statistic, as_list, plan
from hookboard.measure.table import Table
from hookboard.measure.taps import Taps
from hookboard.model.layers import ChannelDims, layers_of
from hookboard.model.parameters import are_unchanged, weights_of
from hookboard.model.selection import check_selection, named_submodules
from hookboard.model.sites import ATTENTION_ROLES, ROLES, Role, Stage
from hookboard.writers.entry import Entry

V = TypeVar("V", bound=MeasurementState)

_NO_READINGS = ReadingList()

Gaps = Mapping[tuple[str, Role], str]
"""Why a site may have nothing to measure, by its name and role."""


class SiteLogger(HookboardCallback[V]):
    """Base of callbacks that measure tensors and log one reading per site in each due step and evaluation loop.

    A subclass says which modules (`_select`) and roles (`_roles`) are measured.
    """

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
        """Return what is to be measured for the argument `statistics`.

        Raises:
            ValueError: a statistic is unknown.
        """
        return plan(self.statistics)

    def _finish(self, found: Readings) -> Readings:
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
        state.news = next((other.news for other in self._live.values()), LayerNews(self._name))
        if any(ROLES[role].is_gradient for role in state.roles):
            scaler = loop.scaler
            state.loss_scale = LossScale(scaler) if scaler is not None and scaler.is_enabled() else None

    def _table(self, loop: Loop, state: V) -> Table:
        """Return the table of one stage."""
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
        state.news.facts = None

    def _leave(self, state: V) -> None:
        state.end_step()  # also if Ctrl-C has come in the middle of a batch's end, or of this

    def _begin_batch(self, loop: Loop, state: V, batch: Any, batch_idx: int) -> None:
        state.until_batch_end.callback(state.end_step)
        state.begin_step()

    def _before_backward(self, loop: Loop, state: V, loss: Tensor | None) -> None:
        """Set the loss scale by which the table divides the gradients of this backward pass."""
        if state.loss_scale is not None:
            state.table.scale = state.loss_scale.in_force()

    def _after_backward(self, loop: Loop, state: V) -> None:
        """Clear the loss scale again: later gradients are not divided."""
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
        """Log a line if nothing was measured in this stage during the whole fit."""
        if state.has_logged:
            return
        no_loop = f"the fit ran no {state.stage} loop after its start"
        why = why_no_step(loop, state.every_n_steps) if state.stage == "train" else no_loop
        inform(f"{self._name} measured nothing in {state.stage}: {why}.")

    def _follow_weights(self, state: V) -> None:
        """If modules have other parameters than before, watch the new ones, and warn once.

        Called before the optimizer steps, because sharded modules have other parameters during forward and backward.
        """
        owners = state.selection.owners
        if not owners or are_unchanged(state.weights, owners):
            return
        before, state.weights = state.weights, weights_of(owners)
        if not all(weight is before.get(name) for name, weight in state.weights.items()):
            state.news.facts = None
            self._say_changed()

    def _send(self, loop: Loop, state: V, along: Tensor | None = None) -> Callable[[], Readings]:
        """Send what was measured in the step or loop, see `Table.send`."""
        if state.loss_scale is None:
            return state.table.send(None, along)
        return state.loss_scale.send(state.table, loop.device, along)

    def _log(self, loop: Loop, state: V) -> None:
        """Send what was measured in the step or loop, and write it when it has arrived."""
        model, step, writes, news = loop.model, loop.logged_step, loop.is_rank_zero, state.news
        facts = news.known(model, state.selection)
        is_first, state.has_logged = not state.has_logged, True
        causes = state.why_nothing() if is_first else {}  # now, as the model may change before the readings arrive
        sent = self._send(loop, state)

        def write() -> None:
            with self._all_ranks_at(f"{state.stage} {step}"):
                readings = sent()
            readings = self._finish(readings)
            self._readings = readings.values()
            if writes:
                records = news.record(readings.places, facts, state.table, state.every_n_steps)
                state.loggers.write(Entry(step, readings.scalars(), readings.with_histogram(), records=records))
            if causes:
                where = f"at step {step}" if state.stage == "train" else f"in the {state.stage} loop at step {step}"
                self._name_gaps(state, where, readings, causes, names_in(model))

        self._do_later(state, write)

    def _name_gaps(self, state: V, where: str, readings: Readings, causes: Gaps, among: Sequence[str]) -> None:
        """Warn about all sites without a reading, grouped by cause.

        Args:
            state: the state of the stage.
            where: the step or loop that was measured.
            readings: what was measured there.
            causes: see `MeasurementState.why_nothing`.
            among: all names of the model, see `names_in`.
        """
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
