"""`HealthMonitor`: says which layer is sick, since when and why."""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import SGD, Optimizer

from hookboard.base.checks import check_name, check_switches, check_whole
from hookboard.base.messages import alert, warn_switched_off
from hookboard.callbacks.all_ranks import Compared, apart, checksums, of_all_ranks
from hookboard.callbacks.loss_meter import LossMeter, summed
from hookboard.callbacks.measurement_state import MeasurementState
from hookboard.callbacks.numbers import SiteLogger
from hookboard.callbacks.reporter import Reporter, write_report
from hookboard.health.judge import Judge
from hookboard.health.look import MEASURED_VALUES_MAX, Apart, Look, Loss, Stepped, every_unit, needs_histogram
from hookboard.health.losses import SPIKE_HISTORY_STEPS
from hookboard.health.report import ended_by
from hookboard.health.robust import median
from hookboard.health.rule import Finding, Rule, Verdict, Verdicts, check_stop_on, rules_of
from hookboard.health.rules.numerics import Nonfinite
from hookboard.health.run import Router, Run, StepFacts
from hookboard.loops.callback import Selection, is_due
from hookboard.loops.loop import Loop
from hookboard.measure.memory import is_plain, measuring_device
from hookboard.measure.table import Table
from hookboard.measure.taps import Taps
from hookboard.model.layers import ChannelDims, Layer, layers_of
from hookboard.model.nested import tensors_in
from hookboard.model.selection import NothingToSelectError, is_read_by_parent, named_submodules, select
from hookboard.model.sites import ATTENTION_ROLES, Role, Site, Stage
from hookboard.model.state import stepped_by, weights_of
from hookboard.tracing.black_box import BlackBox, row_counts_of, worst_rows_of
from hookboard.tracing.experts import is_choice, tokens_of_experts
from hookboard.tracing.explain import late_event
from hookboard.tracing.live_step import LiveStep
from hookboard.tracing.modes import Modes
from hookboard.tracing.optimizing import StaleGradients
from hookboard.tracing.questions import RULES, STEP
from hookboard.writers.loggers import EventFiles

MEASURED = ("rms", "zero_fraction")
"""The statistics in `readings`. Rules read the moments, which are always measured."""

BATCHES_PER_EVALUATION = 4
"""Number of batches of each validation loop that are measured."""

VALUES_COMPARED = 64
"""How many values of a weight tell whether others are swapped in for an evaluation (a choice)."""

Search = Literal["auto", "exact", "late"]
"""How the module that gave the first NaN is found."""


def some_units(weight: Tensor) -> Tensor:
    """Return every k-th unit of a large weight or its gradient, see `every_unit`; a vector or a subclass as it is.

    >>> some_units(torch.zeros(1000, 200)).shape
    torch.Size([250, 200])
    """
    every = every_unit(weight.shape) if weight.numel() > MEASURED_VALUES_MAX else 1
    # A DTensor would have to ask the other ranks for a slice, and other subclasses may not let themselves be cut.
    if every == 1 or type(weight) not in (Tensor, nn.Parameter):
        return weight
    if weight.layout is torch.strided:
        # The kernel for the CPU reads over gaps.
        return weight[::every] if weight.is_cpu else weight[::every].contiguous()
    units = torch.arange(0, len(weight), every, device=weight.device)
    return weight.index_select(0, units).to_dense()


@dataclass(kw_only=True)
class HealthState(MeasurementState):
    """The state of the monitor in one stage."""

    layers: dict[str, Layer] = field(default_factory=dict)
    has_lazy: bool = False  # a layer has no weights yet, because it has not run
    losses: LossMeter = field(default_factory=LossMeter)
    recent: deque[float] = field(default_factory=deque)  # the latest that the host knows, to notice a spike
    stepped: dict[str, Stepped] = field(default_factory=dict)  # during a due step: how an optimizer steps each weight
    held: set[str] = field(default_factory=set)  # the weights that an optimizer holds
    stepping: set[int] = field(default_factory=set)  # the ids of the optimizers that have stepped so far
    batch: Any = None  # the running batch of the training
    batch_idx: int = 0
    first_step: int | None = None  # the optimizer step at which the fit began, or the fit that it resumes
    reporter: Reporter | None = None  # None in evaluations, on ranks that do not judge, and after an error in judging
    files: EventFiles | None = None  # for the page at the end; None if there is to be none
    box: BlackBox | None = None  # finds the first NaN or Inf in its step; None if nobody asks for that
    finds_late: bool = False  # a loss that is not finite is reported when it is read
    told: int = 0  # how many NaN or Inf have been reported
    is_reading: bool = False  # the first training step is still to be read
    live: LiveStep | None = None  # reads it; then knows the adapters, and the autograd nodes with layer and line
    stale: StaleGradients | None = None  # detects gradients that are not cleared; None once that is decided
    modes: Modes | None = None  # None if no rule asks
    step_facts: StepFacts = field(default_factory=StepFacts)  # known from the code of the training steps
    is_ending: bool = False  # an alarm has ended the fit
    why_silent: dict[str, str] = field(default_factory=dict)  # why a layer gave no output at the first look, if so
    compares: bool = False  # the weights of all ranks are compared
    compared: dict[Compared, Tensor] = field(default_factory=dict)  # of the running due step
    as_begun: list[float] = field(default_factory=list)  # of an evaluation: some values of a weight at its beginning
    has_others: bool = False  # of an evaluation: these were others in its first batch

    def tap(self, modules: Mapping[str, Any], role: Role, observer: Callable[[Site], Callable[[Tensor], None]]) -> None:
        """Hook modules for the batch that begins."""
        taps = Taps(modules, [role], observer)
        self.until_batch_end.callback(taps.detach)
        taps.attach()
        taps.active = True

    def open_input(self, site: Site) -> Callable[[Tensor], None]:
        """Return a function that measures a tensor of the batch, if its numbers are floating point."""
        return lambda tensor: self.table.open(site)(tensor) if tensor.dtype.is_floating_point else None

    def open_choice(self, site: Site, router: Router) -> Callable[[Tensor], None]:
        """Return a function that measures the choice from one of a layer's outputs, if that has the picks or scores."""

        def count(tensor: Tensor) -> None:
            if is_choice(tensor, router):
                self.table.open(Site(site.name, "expert_tokens", site.index))(tokens_of_experts(tensor, router))

        return count

    def found(self, findings: Sequence[Finding], since: int | None = None) -> None:
        """Add what was found in the training step, perhaps since an earlier one; the next look judges it."""
        new = [replace(finding, since=since) for finding in findings]
        self.step_facts = self.step_facts._replace(findings=[*self.step_facts.findings, *new])

    def forget(self) -> None:
        """Drop what was measured, and what was read of the batch."""
        super().forget()
        self.batch = None
        if self.live is not None:
            self.live.leave()

    def new_events(self) -> list[Nonfinite]:
        """Return the NaN or Inf that the black box has found since the last call, oldest first."""
        events = [] if self.box is None else self.box.events[self.told :]
        self.told += len(events)
        return events

    def late_events(self, losses: Sequence[Loss]) -> list[Nonfinite]:
        """Return the event of the first loss that is not finite, once in a fit; [] if a black box looks for it."""
        event = late_event(losses) if self.finds_late and not self.told else None
        self.told += event is not None
        return [] if event is None else [event]


class HealthMonitor(SiteLogger[HealthState]):
    """Reports what is wrong during training, in which layer, since when, why, and what to try first.

    It needs no other callback. At the first optimizer step, and then every `every_n_steps`, it measures the parameters,
    the outputs of all layers, their gradients and the updates, applies its rules, and keeps their verdicts in
    `verdicts`. TensorBoard gets one page: a table of the verdicts (`health/verdict`, text), and pictures of all layers
    over the whole run. The terminal gets a line for each new alarm, and a summary at the end of the fit.

    Everything is measured whole, with two exceptions: of a weight with more than 65,536 values, only every k-th unit,
    at most about as many values; and of an output with more than 1024 units, rules that judge single units see only
    every k-th.

    An alarm means that an expert would stop the run or fix the code. A note is worth knowing.

    Args:
        modules: Pattern or patterns for dotted module names, relative to the LightningModule. `*` matches within one
            name, `**` across dots; a leading `!` excludes, and a leading `re:` marks a regular expression. Default:
            every leaf module and every module that owns parameters, or, with `types`, every module of those types.
        types: Class names (`Conv2d`, `torch.nn.Linear`) or classes; subclasses count, and a leading `!` excludes.
        every_n_steps: Optimizer steps between measurements, 1 or more. Default: the Trainer's `log_every_n_steps`.
        rules: Which rules to use: names or patterns (`update_*`), or your own `hookboard.Rule` or the dotted path to
            it. A leading `!` excludes: `!dead_units` uses all rules except this one, and `["*", "!dead_units", mine]`
            adds yours. Default: all built-in rules.
        window: How many measurements a finding must last before it is reported. What happens in a single step, such
            as a NaN, is reported at once.
        nonfinite: How the layer with the first NaN or infinity is found. `exact` checks the loss before each backward
            pass, and the tensors that its graph has saved, so the host waits for the device at each step. `late` does
            not wait and reads all losses at the next measurement: it names the step in which the loss became NaN, and
            the module if the module's values are still NaN; NaN in gradients alone is noticed only in a measured step.
            `auto` is `exact` on the CPU and `late` elsewhere.
        stop_on: Rules whose alarms end the fit: names of rules, or `alarm` for any. The step in which the alarm is
            raised still completes; on a GPU, and with several ranks, each measured step then waits until it is judged.
            Default: never.
        audit: Whether to follow the first training step while it runs, to find faults in its code (the loss, its
            inputs, where gradients are cut) and in the optimizers. Nothing runs twice.
        report: Whether to write the tab's page to one file at the end of the fit: `report.html` in the folder of
            TensorBoard and CSV runs, HTML in W&B, an artifact in MLflow.
        sync_dist: Whether all ranks measure and merge their measurements, as if one process had seen all their data.
            Otherwise, rank 0 logs its own measurements.

    Raises:
        ValueError: At construction: an unknown rule, or a number below 1. At fit start: a pattern or type that matches
            no module.

    Examples:
        >>> HealthMonitor(rules=["dead_units", "nonfinite"], stop_on="nonfinite").verdicts
        ()
    """

    state_class = HealthState
    verb = "judges"
    needs_logger = False  # there are still the verdicts and the terminal
    sees_every_step = True

    def __init__(
        self,
        modules: str | Sequence[str] | None = None,
        *,
        types: str | type | Sequence[str | type] | None = None,
        every_n_steps: int | None = None,
        rules: str | Rule | Sequence[str | Rule] | None = None,
        window: int = 3,
        nonfinite: Search = "auto",
        stop_on: str | Sequence[str] | None = None,
        audit: bool = True,
        report: bool = False,
        sync_dist: bool = True,
    ) -> None:
        super().__init__(modules, types, every_n_steps, MEASURED, False, sync_dist)
        self.rules = rules
        self.window = window
        self.nonfinite = nonfinite
        self.stop_on = stop_on
        self.audit = audit
        self.report = report
        self._verdicts: tuple[Verdict, ...] = ()
        self._run: Run | None = None  # the run of the last fit; None before, in a copy, and on ranks that do not judge
        names = [rule.name for rule in self._rules()]
        if stop_on is not None:
            check_stop_on(stop_on, names, RULES)
        check_name("nonfinite", nonfinite, get_args(Search))
        check_switches(audit=audit, report=report)
        check_whole("window", window, of="measurements")

    @property
    def verdicts(self) -> Verdicts:
        """The verdicts on the run so far, worst first; with several ranks, the latest measurements may be missing."""
        self._catch_up()
        return Verdicts(self._verdicts)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_run": None}

    # What it watches.

    def _rules(self) -> list[Rule]:
        return rules_of(self.rules, RULES)

    def _roles(self) -> list[Role]:
        of_weights: list[Role] = ["parameter_before", "parameter_grad", "parameter_update"]
        return ["output", "grad_output", *ATTENTION_ROLES, *of_weights]

    def _stages(self, loop: Loop) -> list[Stage]:
        return [] if not loop.is_fitting else ["train", "validate"]

    def _why_not(self, loop: Loop) -> str | None:
        if self.stop_on is not None and loop.world_size > 1 and not self.sync_dist:
            raise ValueError("stop_on cannot be combined with sync_dist=False, because all ranks must stop together.")
        return super()._why_not(loop)

    def _select(self, model: nn.Module) -> Selection:
        try:
            owners = select(model, self.modules, self.types, owning="parameters")
        except NothingToSelectError:
            owners = {}
        selected = select(model, self.modules, self.types)
        if self.modules is None and self.types is None:
            selected |= {name: owner for name, owner in owners.items() if name and not is_read_by_parent(name, owners)}
        return Selection(selected, owners)

    def _reset(self) -> None:
        super()._reset()
        self._verdicts, self._run = (), None

    def _prepare(self, loop: Loop, state: HealthState) -> None:
        super()._prepare(loop, state)
        if state.stage != "train":
            return
        names = {rule.name for rule in self._rules()}
        asked = names if self.audit else set[str]()
        if loop.is_rank_zero:
            judge = Judge(self._rules(), state.layers, int(self.window))
            state.files = EventFiles(state.loggers) if self.report else None
            state.reporter = Reporter(judge, state)
            self._run = judge.run
        state.is_reading = not STEP.isdisjoint(asked)
        state.modes = Modes() if "eval_mode" in asked else None
        state.recent = deque(maxlen=SPIKE_HISTORY_STEPS if "spike" in asked else 0)
        state.compares = self._ranks is not None and "ranks_differ" in names
        if "nonfinite" in names:
            if self.nonfinite == "exact" or (self.nonfinite == "auto" and loop.device.type == "cpu"):
                is_scaled = state.loss_scale is not None
                state.box = BlackBox(loop.model, is_scaled=is_scaled, world_size=loop.world_size)
            state.finds_late = state.box is None

    def _saved(self) -> dict[str, Any] | None:
        state = self._live.get("train")
        if state is None or state.reporter is None:
            return None
        return {"first_step": state.first_step, "losses": state.reporter.judge.run.losses.state_dict()}

    def _resume(self, saved: Mapping[str, Any]) -> None:
        state = self._live.get("train")
        if state is None:
            return
        state.first_step = saved["first_step"]
        if state.reporter is not None:
            state.reporter.judge.run.losses.load_state_dict(saved["losses"])

    def _table(self, loop: Loop, state: Any) -> Table:
        self._find_layers(state)
        # No rule reads the channels of gradients.
        channels = ChannelDims(state.layers, with_gradients=False)
        how = {"stage": state.stage, "ranks": self._ranks, "channels": channels, "opened": channels.follow}
        return Table(self._plan(), loop.device, histogram=needs_histogram, part=some_units, **how)

    def _find_layers(self, state: HealthState) -> None:
        weights = weights_of(state.selection.owners)
        has_shape = {name: weight for name, weight in weights.items() if not is_lazy(weight)}
        state.has_lazy = len(has_shape) < len(weights)
        state.layers.clear()  # the table reads this very dict
        state.layers.update(layers_of({**state.selection.modules, **state.selection.owners}, has_shape))

    def _follow(self, loop: Loop, state: HealthState) -> None:
        before = state.selection
        super()._follow(loop, state)
        if state.selection is not before:
            self._follow_layers(loop, state)

    def _follow_layers(self, loop: Loop, state: HealthState) -> None:
        """Watch the layers as they are now; earlier looks are judged first."""
        self._find_layers(state)
        state.table.forget_shapes()
        layers = dict(state.layers)

        def tell() -> None:
            if state.reporter is not None:
                state.reporter.judge.run.follow(layers)

        self._do_later(state, tell)

    # What it does at each step: as few calls as possible if that is not due.

    def _wants(self, loop: Loop, state: HealthState, batch_idx: int, dataloader_idx: int) -> bool:
        if state.stage != "train":
            return batch_idx < BATCHES_PER_EVALUATION
        step = loop.logged_step
        state.first_step = step if state.first_step is None else state.first_step
        return state.every_n_steps > 0 and (step == state.first_step or is_due(step, state.every_n_steps))

    def _begin_batch(self, loop: Loop, state: HealthState, batch: Any, batch_idx: int) -> None:
        if state.is_due:
            super()._begin_batch(loop, state, batch, batch_idx)
            if state.stage != "train":
                if batch_idx == 0:
                    state.has_others = values_of_a_weight(state.weights) != state.as_begun
                return
            self._follow_weights(state)
            state.before.measure(state.weights, state.table)
            self._measure_batch(state, loop.model, batch)
        state.batch, state.batch_idx = batch, batch_idx
        if state.box is not None:
            state.box.begin_batch(batch_idx, loop.logged_step)
        if state.is_reading and not state.has_lazy:
            if state.live is None:
                state.live, state.stale = LiveStep(loop), StaleGradients(loop.model, loop.optimizers)
                if state.box is not None:
                    state.box.programs = state.live.programs
            state.live.begin(batch)  # last, or it would see the calls above

    def _measure_batch(self, state: HealthState, model: nn.Module, batch: Any) -> None:
        """Measure the batch, or else what the model takes, and the tokens that routers give to each expert."""
        for path, tensor in tensors_in(batch):
            state.open_input(Site("", "input", path))(tensor)
        if batch is None:
            state.tap({"": model}, "input", state.open_input)
        routers = {router.layer: router for router in state.step_facts.routers if router.layer}
        if routers:
            modules = {name: module for name, module in named_submodules(model) if name in routers}
            state.tap(modules, "output", lambda site: state.open_choice(site, routers[site.name]))

    def _begin_evaluation(self, loop: Loop, state: HealthState) -> None:
        super()._begin_evaluation(loop, state)
        # A callback may swap in other weights after this, as an average of them.
        state.as_begun = values_of_a_weight(state.weights)

    def _before_backward(self, loop: Loop, state: HealthState, loss: Tensor | None) -> None:
        if state.is_due:
            super()._before_backward(loop, state, loss)
        if state.stale is not None:
            state.stale.before_backward()
        if loss is None:
            return
        box = state.box
        if state.is_reading and state.live is not None:
            state.live.before_backward(loss)
        scale = None if state.loss_scale is None else state.loss_scale.current
        value = state.losses.add(loop.logged_step, state.batch_idx, loss, scale)
        if box is not None:
            box.before_backward(loss, value if scale is None else None, state.batch)
            value = box.loss if scale is None and value is None else value
        if value is not None:
            recent = state.recent
            # It may be a spike, which the rule judges only later, when the graph is gone.
            if len(recent) >= SPIKE_HISTORY_STEPS // 4 and value > max(0.0, *recent):
                excess = 1 - median([*recent]) / value
                state.losses.note_rows(worst_rows_of(loss, row_counts_of(state.batch), excess))
            if math.isfinite(value):
                recent.append(value)

    def _after_backward(self, loop: Loop, state: HealthState) -> None:
        if state.is_reading and state.live is not None:
            state.live.after_backward()
        if state.stale is not None:
            state.stale.after_backward()
        if state.box is not None:
            state.box.after_backward()
        if state.is_due:
            super()._after_backward(loop, state)

    def _before_optimizer_step(self, loop: Loop, state: HealthState, optimizer: Optimizer) -> None:
        if state.stale is not None:
            state.stale.before_step(optimizer)
        if state.box is not None:
            state.box.before_optimizer_step()
        if not state.is_due:
            return
        if state.modes is not None:
            state.found(state.modes.see(state.layout, loop.logged_step), loop.logged_step)
        super()._before_optimizer_step(loop, state, optimizer)
        if state.has_lazy:  # by now they have their shapes
            self._follow_layers(loop, state)
        if state.compares:
            state.compared |= checksums(stepped_by(optimizer, state.weights), some_units, is_gradient=True)
        state.stepping.add(id(optimizer))
        for each in loop.optimizers:
            for name, stepped in steps_of(each, state.weights).items():
                state.held.add(name)
                if id(each) in state.stepping and state.weights[name].requires_grad:
                    state.stepped[name] = stepped

    def _end_batch(self, loop: Loop, state: HealthState, has_stepped: bool) -> None:
        state.batch = None
        if state.is_reading and state.live is not None:
            first = state.live.end()
            if first is not None:
                state.is_reading = False
                state.step_facts = first._replace(findings=[*state.step_facts.findings, *first.findings])
        if state.stale is not None:
            stale = state.stale.end_batch()
            if stale is not None:
                state.found([stale], loop.logged_step)
            if state.stale.is_over:
                state.stale = None
        if state.box is not None and len(state.box.events) > state.told and self._ranks is None:
            self.finish()  # earlier looks are judged first
            self._tell(state, state.new_events())
            self._end_if_asked(loop, state)
        if state.is_due:
            super()._end_batch(loop, state, has_stepped)

    # What it tells.

    def _log(self, loop: Loop, state: HealthState) -> None:
        # Rules judge silent layers (`StepFacts.why_silent`), so nobody is warned of them here.
        is_first, state.has_logged = not state.has_logged, True
        if state.stage != "train":
            self._look_at_evaluation(loop, state)
            return
        if is_first:
            names = [name for name, role in state.taps.expected() if role == "output"]
            state.why_silent = {name: state.taps.why_silent(name, "output") for name in names}
        self._look(loop, state)
        if self.stop_on is not None:
            self.finish()

    def _look(self, loop: Loop, state: HealthState) -> None:
        """Send what the step has measured; once it has arrived, have it judged with what is known of the step now."""
        step, ranks, batch_idx = loop.logged_step, self._ranks, state.batch_idx
        parts, losses = state.losses.take()
        if state.compares:
            state.compared |= checksums(state.weights, some_units, is_gradient=False)
        compared, state.compared = state.compared, {}
        events = [] if ranks is None else state.new_events()
        known = state.layer_record.known(loop.model, state.selection)
        facts = state.step_facts._replace(
            why_silent=state.why_silent,
            unhooked=state.selection.owners.keys() - state.selection.modules.keys(),
            held=frozenset(state.held),
            is_clipped=math.isfinite(loop.largest_norm),
        )
        stepped, state.stepped = state.stepped, {}
        adapters = () if state.live is None else state.live.adapters
        factors = {factor.name for adapter in adapters for factor in (adapter.down, adapter.up)}
        frozen = {name for name, weight in state.weights.items() if not weight.requires_grad}
        is_scaled = state.loss_scale is not None
        sent = self._send(loop, state, _joined([losses, *compared.values()], loop.device))

        def judge_look() -> None:
            with self._all_ranks_at(f"train {step}"):
                readings = sent()
                self._readings, differing = readings.values(), list[Apart]()
                seen = summed(parts, readings.along[: len(parts)])
                all_events = [*events, *state.late_events(seen)]
                if ranks is not None:
                    seen, all_events = of_all_ranks(ranks, seen, all_events)
                if ranks is not None and state.compares:
                    differing = apart(ranks, compared, readings.along[len(parts) :])
                overflowed = is_scaled and readings.overflowed
                look = Look(step, batch_idx, readings, seen, stepped, overflowed, frozen, differing, is_scaled, factors)
                self._tell(state, all_events)
                self._judge(state, lambda reporter: reporter.see(look, facts, known))
                self._end_if_asked(loop, state)

        self._do_later(state, judge_look)

    def _look_at_evaluation(self, loop: Loop, state: HealthState) -> None:
        """Send what an evaluation loop has measured; once it has arrived, have it judged with its loss."""
        training, step, has_others = self._live.get("train"), loop.logged_step, state.has_others
        sent = self._send(loop, state, _joined([loop.evaluation_loss], loop.device))

        def judge_evaluation() -> None:
            with self._all_ranks_at(f"{state.stage} {step}"):
                readings = sent()
            self._readings = readings.values()
            losses = [Loss(step, 0, value) for value in readings.along]
            if training is not None:
                look = Look(step, 0, readings, losses, has_other_weights=has_others)
                self._judge(training, lambda reporter: reporter.judge.see_evaluation(look))

        self._do_later(state, judge_evaluation)

    def _judge(self, state: HealthState, tell: Callable[[Reporter], object]) -> None:
        """Tell the reporter something, if this rank judges, and take its verdicts; an error ends the judging."""
        if state.reporter is not None:
            try:
                tell(state.reporter)
                self._verdicts = state.reporter.judge.verdicts
            except Exception as error:  # what is measured is still worth having, here and on other ranks
                state.reporter = None
                warn_switched_off("HealthMonitor's judging", error)

    def _tell(self, state: HealthState, events: Sequence[Nonfinite]) -> None:
        if events:
            self._judge(state, lambda reporter: reporter.tell(events, is_searched=state.box is not None))

    def _end_if_asked(self, loop: Loop, state: HealthState) -> None:
        """End the fit with this batch if a new alarm of a rule in `stop_on` asks for it, here or on another rank."""
        if self.stop_on is None or state.is_ending:
            return
        asked = {self.stop_on} if isinstance(self.stop_on, str) else {*self.stop_on}
        alarms = [] if state.reporter is None else state.reporter.said
        guilty = next((alarm for alarm in alarms if {"alarm", alarm.rule} & asked), None)
        if any([guilty is not None] if self._ranks is None else self._ranks.gather(guilty is not None)):
            loop.stop()
            state.is_ending = True
            if guilty is not None:
                alert(f"HealthMonitor {ended_by(guilty, loop.logged_step)}")

    def _end_training(self, loop: Loop, state: HealthState) -> None:
        if state.stage != "train":
            return
        parts, rest = state.losses.take()
        losses = [] if state.is_ending or rest is None else summed(parts, rest.tolist())
        events = [*state.new_events(), *state.late_events(losses)]
        if self._ranks is not None:  # which tell at looks only what has happened
            with self._ranks.at("end"):
                losses, events = of_all_ranks(self._ranks, losses, events)
        self._tell(state, events)
        if not state.is_ending:
            self._judge(state, lambda reporter: reporter.judge.end(losses))
        super()._end_training(loop, state)

    def _leave(self, state: HealthState) -> None:
        super()._leave(state)
        state.forget()
        self._tell(state, state.new_events())  # after an exception too, what has been seen is told
        self._judge(state, Reporter.close)
        if state.files is not None and self._run is not None:
            write_report(state.loggers, state.files, self._run)


def values_of_a_weight(weights: Mapping[str, nn.Parameter]) -> list[float]:
    """Return the first values of the first trainable weight that is a plain tensor; [] if none is."""
    plain = (weight for weight in weights.values() if weight.requires_grad and is_plain(weight))
    return next((tensor.detach().flatten()[:VALUES_COMPARED].tolist() for tensor in plain), [])


def _joined(tensors: Sequence[Tensor | None], device: torch.device) -> Tensor | None:
    """Return the numbers of several tensors in one, shape (n,), float64, where the table of a device has its own."""
    there = [one.detach().to(measuring_device(device)).reshape(-1).double() for one in tensors if one is not None]
    return torch.cat(there) if there else None


def steps_of(optimizer: Optimizer, weights: Mapping[str, Tensor]) -> dict[str, Stepped]:
    """Return how an optimizer steps each watched weight that it holds, by the name of the weight."""
    kind, is_adaptive = type(optimizer).__name__, not isinstance(optimizer, SGD)
    of: dict[int, Stepped] = {}
    for group in optimizer.param_groups:
        of.update(dict.fromkeys(map(id, group["params"]), Stepped(kind, float(group.get("lr", 0.0)), is_adaptive)))
    return {name: of[id(weight)] for name, weight in weights.items() if id(weight) in of}
