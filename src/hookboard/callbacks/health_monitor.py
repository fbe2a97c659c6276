"""`HealthMonitor`: says which layer is sick, since when and why."""

import html
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import SGD, AdamW, Optimizer

from hookboard.base.checks import check_name, check_switches, check_whole
from hookboard.base.messages import warn_switched_off
from hookboard.callbacks.all_ranks import of_all_ranks
from hookboard.callbacks.health_state import HealthState
from hookboard.callbacks.numbers import SiteLogger
from hookboard.callbacks.replicas import Compared, Replicas
from hookboard.callbacks.reporter import Reporter, say_ended, write_report
from hookboard.callbacks.step_watch import StepWatch
from hookboard.callbacks.weights import Part, say_split
from hookboard.health.cell import Verdicts, cell
from hookboard.health.judge import Judge
from hookboard.health.look import MEASURED_VALUES_MAX, Apart, HeldBack, Look, Loss, NeedsHistogram, Stepped, every_unit
from hookboard.health.robust import median
from hookboard.health.rule import Rule, Verdict, check_stop_on, rules_of
from hookboard.health.rules.numerics import Nonfinite
from hookboard.health.run import Run
from hookboard.health.spikes import SPIKE_HISTORY_STEPS
from hookboard.loops.loop import Loop
from hookboard.loops.stage_state import Selection, is_due
from hookboard.measure.card import measuring_device
from hookboard.measure.table import Table
from hookboard.model.layers import ChannelDims, layers_of
from hookboard.model.nested import tensors_in
from hookboard.model.parameters import Weight, stepped_by
from hookboard.model.selection import NothingToSelectError, is_read_by_parent, named_submodules, select
from hookboard.model.sites import ATTENTION_ROLES, Role, Site, Stage
from hookboard.tracing.black_box import BlackBox
from hookboard.tracing.built_in import RULES
from hookboard.tracing.loss_rows import row_counts_of, worst_rows_of
from hookboard.writers.event_files import EventFiles

MEASURED = ("rms", "zero_fraction")
"""The statistics that make the table fill the columns that rules read."""

EVALUATED = 4
"""Number of batches of each validation loop that are measured."""

VALUES_COMPARED = 64
"""How many values of a weight tell whether others are swapped in for an evaluation (a choice)."""

_ADAPTERS = "measuring the updates of adapters"

Search = Literal["auto", "exact", "late"]
"""How the module that gave the first NaN is found."""


def layers_in(
    model: nn.Module,
    modules: str | Sequence[str] | None,
    types: str | type | Sequence[str | type] | None,
) -> Selection:
    """Select the layers that `HealthMonitor` watches.

    Raises:
        ValueError: the patterns or types match no module, or the model has none.
    """
    try:
        owners = select(model, modules, types, owning="parameters")
    except NothingToSelectError:
        owners = {}
    except ValueError as error:
        raise ValueError(f"{error}{_rule_among(modules)}") from None
    selected = select(model, modules, types)
    if modules is None and types is None:
        selected |= {name: module for name, module in owners.items() if name and not is_read_by_parent(name, owners)}
    return Selection(selected, owners)


def _rule_among(modules: object) -> str:
    """Return a hint if the name of a rule was given as `modules`; otherwise ""."""
    given = list(modules) if isinstance(modules, list | tuple) else [modules]
    rule = next((name for name in RULES if name in given), None)
    return f" {rule!r} is a rule; pass rules={rule!r}." if rule else ""


def some_units(weight: Tensor) -> Tensor:
    """Return every k-th unit of a large weight or its gradient, see `every_unit`; a DTensor or a vector as it is.

    >>> some_units(torch.zeros(1000, 200)).shape
    torch.Size([250, 200])
    """
    every = every_unit(weight.shape)
    # A DTensor would have to ask the other ranks for a slice.
    if every == 1 or weight.dim() < 2 or isinstance(weight, DTensor):
        return weight
    if weight.layout is torch.strided:
        # The kernel for the CPU reads over gaps.
        return weight[::every] if weight.is_cpu else weight[::every].contiguous()
    units = torch.arange(0, len(weight), every, device=weight.device)
    return weight.index_select(0, units).to_dense()


class HealthMonitor(SiteLogger[HealthState]):
    """Reports what is wrong during training, in which layer, since when, why, and what to try first.

    It needs no other callback. At the first optimizer step, and then every `every_n_steps`, it measures the outputs of
    all layers, their gradients, the parameters and their updates, applies its rules, and keeps their verdicts in
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
            An alarm from before a checkpoint does not end the fit that resumes from it. Default: never.
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

    _part = Part(MEASURED_VALUES_MAX, some_units)

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
        self._run: Run | None = None
        """What was looked at in the last fit, for notebooks; None before, in a copy, and on ranks that do not judge."""
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

    def _repr_html_(self) -> str:
        """Return what a notebook shows, as HTML: headline, verdicts, map of activations; before any look its repr."""
        self._catch_up()
        if self._run is None or not self._run.seen:
            return f"<pre>{html.escape(repr(self))}</pre>"
        return cell(self._run, self._verdicts)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_run": None}

    # What it watches.

    def _rules(self) -> list[Rule]:
        return rules_of(self.rules, RULES)

    def _roles(self) -> list[Role]:
        of_weights: list[Role] = ["parameter", "parameter_grad", "parameter_update"]
        return ["output", "grad_output", *ATTENTION_ROLES, *of_weights]

    def _stages(self, loop: Loop) -> list[Stage]:
        return [] if not loop.is_fitting else ["train", "validate"]

    def _why_not(self, loop: Loop) -> str | None:
        if self.stop_on is not None and loop.world_size > 1 and not self.sync_dist:
            raise ValueError("stop_on cannot be combined with sync_dist=False, because all ranks must stop together.")
        return super()._why_not(loop)

    def _select(self, model: nn.Module) -> Selection:
        return layers_in(model, self.modules, self.types)

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
            say_split(self._weights(state.selection.owners))
            judge = Judge(self._rules(), state.layers, int(self.window))
            state.files = EventFiles(state.loggers) if self.report else None
            state.reporter = Reporter(judge, state.loggers, state.every_n_steps, state.news, state.table)
            self._run = judge.run
        state.steps = StepWatch(asked, is_judged=loop.is_rank_zero)
        state.recent = deque(maxlen=SPIKE_HISTORY_STEPS if "spike" in asked else 0)
        if self._ranks is not None and "ranks_differ" in names:
            state.replicas = Replicas(self._part)
        if "nonfinite" in names:
            if self.nonfinite == "exact" or (self.nonfinite == "auto" and loop.device.type == "cpu"):
                is_scaled = state.loss_scale is not None
                state.box = BlackBox(loop.model, is_scaled=is_scaled, world_size=loop.world_size)
            state.finds_late = state.box is None

    def _saved(self) -> dict[str, Any] | None:
        state = self._live.get("train")
        if state is None or state.reporter is None:
            return None
        losses = state.reporter.judge.run.losses.state_dict()
        return {"first_step": state.first_step, "alarms": sorted(map(list, state.reporter.alarms)), "losses": losses}

    def _resume(self, saved: Mapping[str, Any]) -> None:
        if (state := self._live.get("train")) is None:
            return
        state.first_step = saved["first_step"]
        if state.reporter is not None:
            alarms = {(rule, module) for rule, module in saved["alarms"]}
            state.reporter.judge.run.losses.load_state_dict(saved["losses"])
            state.reporter.alarms, state.earlier = alarms, frozenset(alarms)

    def _table(self, loop: Loop, state: Any) -> Table:
        self._find_layers(state)
        return Table(
            self._plan(),
            loop.device,
            stage=state.stage,
            ranks=self._ranks,
            channels=ChannelDims(state.layers),
            histogram=NeedsHistogram(state.layers),
        )

    def _find_layers(self, state: HealthState) -> None:
        """Set the layers of a stage to those that the model has now."""
        weights = self._weights(state.selection.owners)
        has_shape = {name: weight for name, weight in weights.items() if not weight.is_lazy}
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
            return batch_idx < EVALUATED
        step = loop.logged_step
        state.first_step = step if state.first_step is None else state.first_step
        return state.every_n_steps > 0 and (step == state.first_step or is_due(step, state.every_n_steps))

    def _attach(self, loop: Loop, state: HealthState) -> None:
        super()._attach(loop, state)
        state.until_end.callback(state.steps.leave_batch)
        state.choices = None
        if state.stage == "train" and loop.trainer is None:  # a loop that may not tell its batches
            state.inputs = state.tapped({"": loop.model}, "input", state.open_input)

    def _begin_batch(self, loop: Loop, state: HealthState, batch: Any, batch_idx: int) -> None:
        if state.is_due:
            super()._begin_batch(loop, state, batch, batch_idx)
            if state.stage == "train":
                self._measure_batch(loop, state, batch)
            else:
                self._compare_weights(state)
        if state.stage == "train":
            state.batch, state.batch_idx = batch, batch_idx
            if state.box is not None:
                state.box.begin_batch(batch, batch_idx, loop.logged_step)
            if not state.has_lazy:
                if state.replicas is not None:
                    state.replicas.begin(state.weights)
                if state.steps.is_following:
                    state.steps.begin_batch(loop, batch)  # last, or it would see the calls above

    def _measure_batch(self, loop: Loop, state: HealthState, batch: Any) -> None:
        """Measure what goes into the model, and the tokens that routers give to each expert, if it has any."""
        state.adapted.forget()
        routers = {router.layer: router for router in state.steps.facts.routers if router.layer}
        if state.choices is None and routers:
            modules = {name: module for name, module in named_submodules(loop.model) if name in routers}
            state.choices = state.tapped(modules, "output", lambda site: state.open_choice(site, routers[site.name]))
        for taps in (state.choices, state.inputs if batch is None else None):
            if taps is not None:
                state.until_batch_end.callback(taps.end_step)
                taps.active = True
        for path, tensor in tensors_in(batch):
            state.open_input(Site("", "input", path))(tensor)

    def _begin_evaluation(self, loop: Loop, state: HealthState) -> None:
        super()._begin_evaluation(loop, state)
        training = self._live.get("train")  # a callback may swap in other weights after this
        state.as_begun = None if training is None else values_of_a_weight(training.weights)
        state.are_others = None

    def _compare_weights(self, state: HealthState) -> None:
        """See in the first batch of an evaluation whether it has the weights of the training."""
        if state.as_begun is not None and (training := self._live.get("train")) is not None:
            now = values_of_a_weight(training.weights)
            state.are_others = None if now is None else (now != state.as_begun).any()
            state.as_begun = None

    def _before_backward(self, loop: Loop, state: HealthState, loss: Tensor) -> None:
        steps, box = state.steps, state.box
        if steps.is_following or state.is_due:
            steps.before_backward(loop, loss, state.is_due)
        scale = None if state.loss_scale is None else state.loss_scale.current
        value = state.losses.add(loop.logged_step, state.batch_idx, loss, scale)
        if box is not None:
            box.programs = steps.programs
            box.before_backward(loss, value if scale is None else None, state.batch)
            value = box.loss if scale is None and value is None else value
            if len(box.events) > state.told:
                self._tell_news(loop, state)
        if value is not None:
            recent = state.recent
            # It may be a spike, which the rule judges only later, when the graph is gone.
            if len(recent) >= SPIKE_HISTORY_STEPS // 4 and value > max(0.0, *recent):
                self._note_rows(state, loss, 1 - median([*recent]) / value)
            if math.isfinite(value):
                recent.append(value)
        if state.is_due:
            super()._before_backward(loop, state, loss)

    def _note_rows(self, state: HealthState, loss: Tensor, excess: float) -> None:
        """Note the rows of the batch whose losses make up this share of the loss, as they do in a spike."""
        what = "the search for the rows with the largest loss"
        worst = state.steps.tried(what, lambda: worst_rows_of(loss, row_counts_of(state.batch), excess))
        if worst is not None:
            state.losses.note_rows(worst)

    def _after_backward(self, loop: Loop, state: HealthState) -> None:
        if state.steps.is_following:
            state.steps.after_backward()
        if state.box is not None:
            state.box.after_backward()
            if len(state.box.events) > state.told:
                self._tell_news(loop, state)
        if state.is_due:
            super()._after_backward(loop, state)

    def _before_optimizer_step(self, loop: Loop, state: HealthState, optimizer: Optimizer) -> None:
        if state.steps.is_following or state.is_due:
            state.steps.before_step(loop, optimizer, state.is_due)
        if state.box is not None:
            state.box.before_optimizer_step()
            if len(state.box.events) > state.told:
                self._tell_news(loop, state)
        if state.is_due:
            self._measure_before_step(loop, state, optimizer)

    def _measure_before_step(self, loop: Loop, state: HealthState, optimizer: Optimizer) -> None:
        super()._before_optimizer_step(loop, state, optimizer)
        if state.has_lazy:  # by now they have their shapes
            self._follow_layers(loop, state)
        if state.replicas is not None:
            state.replicas.note("gradient", stepped_by(optimizer, state.weights))
        state.stepping.add(id(optimizer))
        for each in loop.optimizers:
            for name, (stepped, held_back) in steps_of(loop, each, state.weights).items():
                state.held_back[name] = held_back
                if id(each) in state.stepping and any(p.requires_grad for p in state.weights[name].parameters):
                    state.stepped[name] = stepped
        if state.steps.adapters:
            state.steps.tried(_ADAPTERS, state.adapted.keep, state.steps.adapters, state.weights, state.stepped)

    def _measure_after_step(self, loop: Loop, state: HealthState) -> None:
        super()._measure_after_step(loop, state)
        if state.steps.adapters:
            state.steps.tried(_ADAPTERS, state.adapted.measure, state.table, state.weights)

    def _end_batch(self, loop: Loop, state: HealthState, has_stepped: bool) -> None:
        if state.stage == "train":
            state.batch = None
            if state.steps.is_following:
                state.steps.end_batch()
        if state.is_due:
            super()._end_batch(loop, state, has_stepped)

    # What it tells.

    def _log(self, loop: Loop, state: HealthState) -> None:
        # Rules judge silent layers (`StepFacts.why_silent`), so nobody is warned of them here.
        is_first, state.gaps_are_named = not state.gaps_are_named, True
        if state.stage == "train":
            self._look(loop, state)
            if is_first and self._ranks is not None:
                self._tell_unused(state, loop.logged_step)
            if self.stop_on is not None:
                self._end_if_asked(loop, state)
        else:
            self._look_at_evaluation(loop, state)

    def _look(self, loop: Loop, state: HealthState) -> None:
        """Send what the step has measured; once it has arrived, have it judged with what is known of the step now."""
        step, ranks, losses, compared = loop.logged_step, self._ranks, state.losses.take(), list[Compared]()
        along = [] if losses.waiting is None else [losses.waiting]
        count = sum(map(len, along))
        if state.replicas is not None:
            state.replicas.note("after", state.weights)
            compared, numbers = state.replicas.take()
            along += [] if numbers is None else [numbers]
        events = [] if ranks is None else state.new_events()
        known = state.news.collect(loop.model, state.selection) if state.news.facts is None else state.news.facts
        facts, stepped, state.stepped = state.facts(), state.stepped, {}
        frozen = {name for name, w in state.weights.items() if not any(p.requires_grad for p in w.parameters)}
        is_scaled = state.loss_scale is not None
        look = Look(
            step,
            state.batch_idx,
            {},
            stepped=stepped,
            frozen=frozen,
            is_scaled=is_scaled,
            factors=state.adapted.factors,
        )
        sent = self._send(loop, state, _joined(along, loop.device))

        def arrived() -> None:
            with self._all_ranks_at(f"train {step}"):
                readings = sent().filled()
                self._readings, apart = readings.values(), list[Apart]()
                seen = losses.read(readings.along[:count])
                told = [*events, *state.late_events(seen)]
                if ranks is not None:
                    seen, told = of_all_ranks(ranks, seen, told)
                    if state.replicas is not None:
                        apart = state.replicas.compare(ranks, compared, readings.along[count:])
                overflowed = is_scaled and bool(readings.overflowed.any())
                now = replace(look, readings=readings, losses=seen, overflowed=overflowed, apart=apart)
                self._tell(state, told)
                self._judge(state, lambda reporter: reporter.see(now, facts, known))
                if ranks is not None and self.stop_on is not None:
                    state.is_asked_of_all = ranks.is_any(self._guilty(state) is not None)

        self._do_later(state, arrived)

    def _look_at_evaluation(self, loop: Loop, state: HealthState) -> None:
        """Send what an evaluation loop has measured; once it has arrived, have it judged with its loss."""
        training, step = self._live.get("train"), loop.logged_step
        along = [one for one in (loop.evaluation_loss, state.are_others) if one is not None]
        compares = state.are_others is not None
        sent = self._send(loop, state, _joined(along, loop.device))

        def arrived() -> None:
            with self._all_ranks_at(f"{state.stage} {step}"):
                readings = sent().filled()
            self._readings, numbers = readings.values(), [*readings.along]
            has_others = compares and bool(numbers.pop())
            losses = [Loss(step, 0, value) for value in numbers]
            if training is not None:
                look = Look(step, 0, readings, losses, has_other_weights=has_others)
                self._judge(training, lambda reporter: reporter.judge.see_evaluation(look))

        self._do_later(state, arrived)

    def _tell_unused(self, state: HealthState, step: int) -> None:
        """Tell at once of unused parameters, for which DDP raises an error in the next step, before ranks merge."""
        found = [one for one in state.steps.facts.findings if one.rule == "unused_parameters"]

        def told(reporter: Reporter) -> tuple[Verdict, ...]:
            for one in found:
                reporter.judge.add(one.rule, one, step)
            return reporter.judge.verdicts

        if found:
            self._judge(state, told)

    def _judge(self, state: HealthState, ask: Callable[[Reporter], tuple[Verdict, ...]]) -> None:
        """Ask the reporter for the verdicts, if this rank judges; an error ends the judging."""
        if state.reporter is not None:
            try:
                self._verdicts = ask(state.reporter)
            except Exception as error:  # what is measured is still worth having, here and on other ranks
                state.reporter = None
                warn_switched_off("HealthMonitor's judging", error)

    def _tell(self, state: HealthState, events: Sequence[Nonfinite]) -> None:
        if events:
            self._judge(state, lambda reporter: reporter.tell(events, is_searched=state.box is not None))

    def _tell_news(self, loop: Loop, state: HealthState) -> None:
        """Report what the black box has found, and end the fit if `stop_on` asks for it.

        Do nothing if ranks merge: then all report it together at the next look.
        """
        if self._ranks is None:
            self.finish()  # earlier looks are judged first
            self._tell(state, state.new_events())
            self._end_if_asked(loop, state)

    def _guilty(self, state: HealthState) -> Verdict | None:
        """Return the first verdict that is a new alarm of a rule in `stop_on`, or None."""
        asked = {self.stop_on} if isinstance(self.stop_on, str) else {*(self.stop_on or ())}
        alarms = (v for v in self._verdicts if v.severity == "alarm" and (v.rule, v.module) not in state.earlier)
        return next((v for v in alarms if {"alarm", v.rule} & asked), None)

    def _end_if_asked(self, loop: Loop, state: HealthState) -> None:
        """End the fit with this batch if there is such an alarm, on any rank if there are others."""
        if self.stop_on is None or state.is_ending:
            return
        self.finish()
        guilty = self._guilty(state)
        if state.is_asked_of_all if self._merges(loop) else guilty is not None:
            loop.stop()
            state.is_ending = True
            if guilty is not None:
                say_ended(guilty, loop.logged_step)

    def _end_training(self, loop: Loop, state: HealthState) -> None:
        """Judge the whole training unless `stop_on` ended it."""
        if state.stage != "train":
            return
        rest = state.losses.take()
        losses = rest.read([] if rest.waiting is None else rest.waiting.tolist())
        losses = [] if state.is_ending else losses
        events = [*state.new_events(), *state.late_events(losses)]
        if self._ranks is not None:  # which tell at looks only what has happened
            with self._ranks.at("end"):
                losses, events = of_all_ranks(self._ranks, losses, events)
        self._tell(state, events)
        if not state.is_ending:
            self._judge(state, lambda reporter: reporter.judge.end(losses))
        if state.reporter is not None:
            state.reporter.close()
        super()._end_training(loop, state)

    def _leave(self, state: HealthState) -> None:
        super()._leave(state)
        state.forget()
        if state.reporter is not None:  # after an exception too, what has been seen is told
            state.reporter.close()
        if state.files is not None and self._run is not None:
            write_report(state.loggers, state.files, self._run.now.step if self._run.seen else None)


def values_of_a_weight(weights: Mapping[str, Weight]) -> Tensor | None:
    """Return a copy of the first values of the first trainable weight; None if that is no plain tensor."""
    first = next((p for weight in weights.values() for p in weight.parameters if p.requires_grad), None)
    plain = type(first) is nn.Parameter and first.layout is torch.strided
    return first.detach().flatten()[:VALUES_COMPARED].clone() if first is not None and plain else None


def _joined(tensors: Sequence[Tensor], device: torch.device) -> Tensor | None:
    """Return the numbers of several tensors in one, shape (n,), float64, where the table of a device has its own."""
    there = [tensor.detach().to(measuring_device(device)).reshape(-1).double() for tensor in tensors]
    return torch.cat(there) if there else None


def steps_of(loop: Loop, optimizer: Optimizer, weights: Mapping[str, Weight]) -> dict[str, tuple[Stepped, HeldBack]]:
    """Read the settings of an optimizer for each watched weight that it holds, by name.

    Args:
        loop: the loop, which may clip gradients.
        optimizer: the optimizer.
        weights: all watched weights by name.
    """
    kind, is_adaptive = type(optimizer).__name__, not isinstance(optimizer, SGD)
    is_of_torch = type(optimizer).__module__.startswith("torch.optim")
    of: dict[int, tuple[Stepped, HeldBack]] = {}
    for group in optimizer.param_groups:
        decay = float(group.get("weight_decay", 0.0)) if is_of_torch else 0.0
        is_decoupled = bool(group.get("decoupled_weight_decay", isinstance(optimizer, AdamW) or kind == "Muon"))
        both = Stepped(kind, float(group.get("lr", 0.0)), is_adaptive), HeldBack(decay, is_decoupled, loop.largest_norm)
        of.update(dict.fromkeys(map(id, group["params"]), both))
    return {name: of[id(p)] for name, weight in weights.items() for p in weight.parameters if id(p) in of}
