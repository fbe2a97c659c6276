"""The state of `HealthMonitor` in one stage: the losses of all steps, the judge, and the reporter of its verdicts."""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from hookboard.auditing import (
    RULES,
    LiveStep,
    StaleGradients,
    in_training,
    left_in_evaluation,
    left_out_later,
    without_statistics,
)
from hookboard.callbacks.layer_news import Facts
from hookboard.callbacks.loss_meter import Losses, LossMeter, mean_over_ranks
from hookboard.callbacks.measurement_state import MeasurementState
from hookboard.callbacks.report_at_end import ReportAtEnd
from hookboard.first_nan import BlackBox, late_event
from hookboard.health import (
    Finding,
    HeldBack,
    Judge,
    Look,
    Loss,
    Nonfinite,
    Page,
    StepFacts,
    Stepped,
    Verdict,
    before_nonfinite,
    closing,
    ended_by,
    every_unit,
    first_of,
    news,
    parts_of,
    restore_judge,
)
from hookboard.hooks import Taps
from hookboard.layers import Layer
from hookboard.loops import Loop, Selection
from hookboard.messages import alert, inform, warn_switched_off
from hookboard.ranks import Ranks
from hookboard.recording import Readings
from hookboard.selection import NothingToSelectError, is_read_by_parent, select
from hookboard.sites import Site
from hookboard.torch_private import computing_plainly
from hookboard.writers import Entry, Loggers

BEFORE = "health/before_nonfinite"
"""The tag of the readings before the first NaN or Inf."""


class Reporter:
    """Writes the verdicts of a judge to the loggers, and logs new alarms as warnings.

    Args:
        judge: judges the run.
        loggers: the loggers to write to.
        every_n_steps: number of steps between two looks.
    """

    def __init__(self, judge: Judge, loggers: Loggers, every_n_steps: int) -> None:
        self._judge = judge
        self._loggers = loggers
        self._page = Page(every_n_steps, judge.look_at)
        self.alarms: set[tuple[str, str]] = set()
        """Rule and module of each alarm for which a warning was given."""
        self._is_closed = False

    def after_look(self, verdicts: tuple[Verdict, ...], records: Mapping[str, Sequence[bytes]]) -> None:
        """Warn of each new alarm, and write to the loggers what the health page shows after a look.

        Args:
            verdicts: worst first.
            records: further records to write, tag to strings.
        """
        self._say_new(verdicts)
        entry = self._page.entry(self._judge.run, verdicts)
        entry.records.update(records)
        self._loggers.write(entry)

    def at_event(self, verdicts: tuple[Verdict, ...], step: int, before: Look | None) -> None:
        """After a NaN or Inf, warn of new alarms, and log the last look before it, as a text.

        Args:
            verdicts: worst first.
            step: the optimizer step of the event.
            before: the last look before it; None if there was none.
        """
        self._say_new(verdicts)
        if before is not None:
            self._loggers.write(Entry(step, texts={BEFORE: before_nonfinite(before)}))

    def close(self, verdicts: tuple[Verdict, ...]) -> None:
        """Write the page for the last time and log the worst verdicts; nothing before a look or in a second call."""
        run = self._judge.run
        if self._is_closed or not run.seen:
            return
        self._is_closed = True
        self._say_new(verdicts)
        self._loggers.write(self._page.last(run, verdicts))
        say = alert if any(verdict.severity == "alarm" for verdict in verdicts) else inform
        say("\n".join(closing(run, verdicts, self._loggers.places if self._loggers.are_given else None)))

    def _say_new(self, verdicts: tuple[Verdict, ...]) -> None:
        """Warn of each alarm that is not in `alarms` yet, and add it to them."""
        for verdict in verdicts:
            key = verdict.rule, verdict.module
            if verdict.severity == "alarm" and key not in self.alarms:
                self.alarms.add(key)
                alert(news(verdict))


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
    return f" {rule!r} is a rule: give rules={rule!r}." if rule else ""


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
        return weight[::every]
    units = torch.arange(0, len(weight), every, device=weight.device)
    return weight.index_select(0, units).to_dense()


MEASURED = ("rms", "zero_fraction")
"""The statistics that make the recorder fill the columns that rules read."""

Search = Literal["auto", "exact", "late"]
"""How the module that gave the first NaN is found."""

EVALUATED = 4
"""Number of batches of each validation loop that are measured."""


Judging = Callable[[Readings], tuple[Verdict, ...] | None]
"""Takes the readings of a step or evaluation loop that are not empty. Returns the verdicts on the run, worst first;
None where this rank does not judge."""

_is_trained = operator.attrgetter("requires_grad")

_KEPT = ("first_step", "told")


@dataclass
class HealthState(MeasurementState):
    """The state of the monitor in one stage.

    Args:
        losses: the loss of every step since the last look.
        stepped: during a due step, weight name to how an optimizer steps it.
        held_back: weight name to its weight decay and gradient clipping.
        batch_idx: the index of the running batch.
        first_step: the optimizer step at which the fit began; None before.
        judge: judges the run; None in evaluations, on ranks that do not judge, and after a fault.
        reporter: writes the verdicts of the judge.
        report: writes the page at the end; None if there is to be none.
        black_box: finds the first NaN or Inf in its step; None outside of training, and where nobody asks for that.
        finds_late: whether a loss that is not finite is reported when it is read.
        findings: what was found in the code of the training step; None before it was read.
        facts: what is known of that step besides.
        inputs: the hook on the model whose inputs stand for a batch that the loop does not tell; None if all are told.
        awake: the norms and dropouts that were in training mode at the first due step; None before.
        trainable: the names of all parameters that were trainable at a due step so far.
        has_seen_copies: whether frozen norms without statistics have been reported.
        stale: watches for gradients that are not cleared; None where nothing is watched, and when that is over.
        live: follows the first training step; None before, and once it has been read.
        told: number of NaN or Inf that have been reported.
        is_ending: True once the monitor has ended the fit.
        why_silent: layer name to why it gave no output at the first look, if it gave none; None before.
        is_asked_to_end: True if any rank asked at the last look to end the fit; only used with several ranks.
        earlier: rule and module of the alarms of a fit that this one continues; they do not end it.
    """

    losses: LossMeter = field(default_factory=LossMeter, kw_only=True)
    stepped: dict[str, Stepped] = field(default_factory=dict, kw_only=True)
    held_back: dict[str, HeldBack] = field(default_factory=dict, kw_only=True)
    batch_idx: int = field(default=0, kw_only=True)
    first_step: int | None = field(default=None, kw_only=True)
    judge: Judge | None = field(default=None, kw_only=True)
    reporter: Reporter | None = field(default=None, kw_only=True)
    report: ReportAtEnd | None = field(default=None, kw_only=True)
    black_box: BlackBox | None = field(default=None, kw_only=True)
    finds_late: bool = field(default=False, kw_only=True)
    findings: Sequence[Finding] | None = field(default=None, kw_only=True)
    facts: StepFacts = field(default=StepFacts(), kw_only=True)
    inputs: Taps | None = field(default=None, kw_only=True)
    awake: set[str] | None = field(default=None, kw_only=True)
    trainable: set[str] = field(default_factory=set, kw_only=True)
    has_seen_copies: bool = field(default=False, kw_only=True)
    stale: StaleGradients | None = field(default=None, kw_only=True)
    live: LiveStep | None = field(default=None, kw_only=True)
    told: int = field(default=0, kw_only=True)
    is_ending: bool = field(default=False, kw_only=True)
    is_asked_to_end: bool = field(default=False, kw_only=True)
    why_silent: dict[str, str] | None = field(default=None, kw_only=True)
    earlier: frozenset[tuple[str, str]] = field(default=frozenset(), kw_only=True)

    def open_input(self, site: Site) -> Callable[[Tensor], None]:
        """Return a function that measures a tensor of the batch, if its numbers are floating point."""
        return lambda tensor: self.recorder.open(site)(tensor) if tensor.dtype.is_floating_point else None

    def state_dict(self, again: tuple[int, int] | None) -> dict[str, Any]:
        """Return the state of the base class, of judge, black box and losses, for a checkpoint."""
        return {
            **super().state_dict(again),
            **{name: getattr(self, name) for name in _KEPT},
            "losses": self.losses.state_dict(again),
            "judge": None if self.judge is None else parts_of(self.judge),
            "alarms": set() if self.reporter is None else self.reporter.alarms,
            "black_box": None if self.black_box is None else self.black_box.state_dict(),
        }

    def load_state_dict(self, parts: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint, to go on judging its run; a rank without a judge restores the rest."""
        if self.judge is not None and self.reporter is not None and parts["judge"] is not None:
            restore_judge(self.judge, parts["judge"], {layer.name: layer for layer in self.judge.run.layers})
            self.reporter.alarms = parts["alarms"]
            self.earlier = frozenset((v.rule, v.module) for v in self.judge.verdicts if v.severity == "alarm")
        if self.black_box is not None and parts["black_box"] is not None:
            self.black_box.load_state_dict(parts["black_box"])
        vars(self).update({name: parts[name] for name in _KEPT})
        self.losses.load_state_dict(parts["losses"])
        super().load_state_dict(parts)

    def begin_judging(self, judge: Judge) -> None:
        """Set the judge of the run, and make the reporter that writes its verdicts."""
        self.judge, self.reporter = judge, Reporter(judge, self.loggers, self.every_n_steps)

    def end_live(self) -> None:
        """End the batch for the reading of the first step, and take what is known of it."""
        first = None if self.live is None else self.live.end()
        if first is not None:
            self.live = None
            self.facts = first.facts
            if self.black_box is not None:
                self.black_box.programs = first.programs
            self.add_findings(first.findings)

    def see_modes(self, model: nn.Module, step: int) -> None:
        """Note which layers are in training mode at the first due step, and later whether none of them is any more."""
        if self.awake is None:
            self.awake = in_training(model)
            return
        if self.awake and (found := left_in_evaluation(model, self.awake, step)) is not None:
            self.add_findings([found], since=step)
            self.awake = set()
        if not self.has_seen_copies and (found := without_statistics(model)) is not None:
            self.add_findings([found], since=step)
            self.has_seen_copies = True

    def see_trainable(self, model: nn.Module, optimizers: Sequence[Optimizer], step: int) -> None:
        """Note which parameters are trainable at the first due step, and which have become so at a later one."""
        parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        new = parameters.keys() - self.trainable if self.trainable else set[str]()
        self.trainable |= parameters.keys()
        if new and self.findings is not None:  # what was said of frozen weights no longer holds
            self.findings = [one for one in self.findings if one.rule != "frozen"]
            self.add_findings([*left_out_later(optimizers, parameters, sorted(new))], since=step)

    def drop_live(self) -> None:
        """Stop following the first step."""
        if self.live is not None:
            self.live.leave()
            self.live = None

    def add_findings(self, found: Sequence[Finding], since: int | None = None) -> None:
        """Add what was found in the training step, perhaps since an earlier one; the next look judges it."""
        self.findings = [*(self.findings or ()), *(replace(one, since=since) for one in found)]

    def watch_stale(self, stale: StaleGradients, watch: Callable[..., Finding | None], *given: Any) -> None:
        """Call `watch`, a method of `stale`, and add the finding that it returns; an error warns and ends it."""
        try:
            with computing_plainly():
                found = watch(*given)
        except Exception as error:
            self.stale = None
            warn_switched_off("the search for gradients that are not cleared", error)
            return
        if found is not None:
            first = self.judge.run.first if self.judge is not None and found.rule != "stale_gradients" else None
            self.add_findings([found], None if first is None else first.step)  # all steps of the optimizer were so
        if stale.is_over:
            self.stale = None

    def note_gaps(self) -> None:
        """Set `gaps_are_named`, and at the first look `why_silent`."""
        self.gaps_are_named = True
        if self.why_silent is None:
            names = [name for name, role in self.taps.expected() if role == "output"]
            self.why_silent = {name: self.taps.why_silent(name, "output") for name in names}

    def look(self, step: int, facts: Facts, losses: Losses, ranks: Ranks | None) -> Judging:
        """Collect what is known of this step; return a function that takes its readings and has them judged.

        Any thread may call the function. If there are several ranks, each must call it.

        Args:
            step: the optimizer step.
            facts: what `LayerNews.collect` returned.
            losses: the losses since the last look.
            ranks: the processes that share their losses and events; None if there are no others.
        """
        events: list[Nonfinite] = [] if ranks is None else self.new_events()
        frozen = {name for name, w in self.weights.items() if not any(map(_is_trained, w.parameters))}
        is_scaled, batch_idx = self.loss_scale is not None, self.batch_idx
        stepped, self.stepped = self.stepped, {}
        held_back, unhooked = dict(self.held_back), self.selection.owners.keys() - self.selection.modules.keys()
        why_silent, findings = self.why_silent or {}, [*(self.findings or ())]

        def take(readings: Readings) -> tuple[Verdict, ...] | None:
            seen = losses.read(readings.along)
            told = [*events, *self.late_events(seen)]
            if ranks is not None:
                seen, told = mean_over_ranks(ranks, seen), firsts_over_ranks(ranks, told)
            overflowed = is_scaled and bool(readings.overflowed.any())
            look = Look(step, batch_idx, readings, seen, stepped, overflowed, frozen, is_scaled)

            def judged(judge: Judge, reporter: Reporter) -> tuple[Verdict, ...]:
                if told:
                    self.tell(told)
                judge.run.why_silent, judge.run.findings = why_silent, findings
                judge.run.held_back, judge.run.unhooked = held_back, unhooked
                judge.run.facts = self.facts
                verdicts = judge.see(look)
                if self.report is not None:
                    self.report.see(seen)
                layers = judge.run.layers
                records = self.news.in_order(
                    layers, lambda: [layer.name for layer in layers], facts, self.recorder, self.every_n_steps
                )
                reporter.after_look(verdicts, records)
                return verdicts

            return self._judged(judged)

        return take

    def evaluation(self, step: int, loss: Tensor | None) -> Judging:
        """Return a function that takes the readings of an evaluation loop and has them and `loss` judged, as `look`."""

        def judged(readings: Readings) -> tuple[Verdict, ...] | None:
            losses = [] if loss is None else [Loss(step, 0, float(loss))]  # which may wait for the device
            return self._judged(lambda judge, _: judge.see_evaluation(Look(step, 0, readings, losses)))

        return judged

    def last_losses(self) -> list[Loss]:
        """Return the losses since the last look, for which it waits, and forget them."""
        losses = self.losses.take()
        return losses.read([] if losses.waiting is None else losses.waiting.tolist())

    def end_judging(self, losses: Sequence[Loss]) -> tuple[Verdict, ...]:
        """Judge the whole training, with the losses since the last look; return all verdicts, () without a judge."""
        if self.report is not None:
            self.report.see(losses)
        verdicts = self._judged(lambda judge, _: judge.end(losses))
        return () if verdicts is None else verdicts

    def _judged(self, see: Callable[[Judge, Reporter], tuple[Verdict, ...]]) -> tuple[Verdict, ...] | None:
        """Return what `see` returns; None where this rank does not judge; an error warns and ends the judging."""
        if self.judge is None or self.reporter is None:
            return None
        try:
            return see(self.judge, self.reporter)
        except Exception as error:  # what is measured is still worth having, here and on other ranks
            self.judge = None
            warn_switched_off("judging by HealthMonitor", error)
            return None

    def follow(self, known: dict[str, Layer], layers: Mapping[str, Layer]) -> None:
        """Replace the watched layers after the model has changed.

        Args:
            known: the layers by name that the recorder reads; changed in place.
            layers: the new ones by name.
        """
        known.clear()
        known.update(layers)
        self.recorder.slots.forget_shapes()
        if self.judge is not None:
            self.judge.run.follow(known)

    def new_events(self) -> list[Nonfinite]:
        """Return the events that the black box has added since the last call, oldest first."""
        events = [] if self.black_box is None else self.black_box.events[self.told :]
        self.told += len(events)
        return events

    def late_events(self, losses: Sequence[Loss]) -> list[Nonfinite]:
        """Return the event of the first loss that is not finite, once in a fit; [] where a black box looks for it."""
        event = late_event(losses) if self.finds_late and not self.told else None
        self.told += event is not None
        return [] if event is None else [event]

    def tell(self, events: Sequence[Nonfinite]) -> tuple[Verdict, ...]:
        """Judge and report events of the black box, at least one, and return all verdicts, worst first."""
        assert self.judge is not None
        assert self.reporter is not None
        is_searched = self.black_box is not None
        if not is_searched and any(v.rule == "nonfinite" and v.severity == "alarm" for v in self.judge.verdicts):
            return self.judge.verdicts  # an earlier look has shown where it began: the loss is what follows from it
        for event in events:
            self.judge.add("nonfinite", event.finding, event.step, event.is_located, is_searched)
        looks, verdicts = self.judge.run.looks, self.judge.verdicts
        self.reporter.at_event(verdicts, events[0].step, looks[-1] if looks else None)
        return verdicts

    def guilty(self, stop_on: str | Sequence[str], verdicts: Sequence[Verdict]) -> Verdict | None:
        """Return the first of `verdicts` that is a new alarm of a rule in `stop_on` ("alarm": of any rule), or None."""
        asked = {stop_on} if isinstance(stop_on, str) else {*stop_on}
        alarms = (v for v in verdicts if v.severity == "alarm" and (v.rule, v.module) not in self.earlier)
        return next((v for v in alarms if {"alarm", v.rule} & asked), None)

    def end_if_asked(
        self, loop: Loop, stop_on: str | Sequence[str], verdicts: Sequence[Verdict], with_others: bool
    ) -> None:
        """End the fit with this batch if a rule of `stop_on` gives an alarm, on any rank if there are others.

        Args:
            loop: runs the fit.
            stop_on: see `guilty`.
            verdicts: of this rank, worst first.
            with_others: whether there are other ranks.
        """
        guilty = self.guilty(stop_on, verdicts)
        if self.is_asked_to_end if with_others else guilty is not None:
            loop.stop()
            self.is_ending = True
            if guilty is not None:
                alert(f"HealthMonitor {ended_by(guilty, loop.logged_step)}")

    def close(self) -> None:
        """Report the verdicts of the run, also after an exception or a fault; it does not raise."""
        if self.black_box is not None:
            self.black_box.end_batch()
        try:
            if self.judge is not None and self.reporter is not None:
                self.reporter.close(self.judge.verdicts)
        except Exception as error:
            warn_switched_off("the last verdict of HealthMonitor", error)


def firsts_over_ranks(ranks: Ranks, events: list[Nonfinite]) -> list[Nonfinite]:
    """Return the first event of each step, over all ranks. Every rank must call this.

    As each rank has other batches, the evidence of an event that depends on the batch begins with the rank.
    """
    named = [
        event
        if event.during in ("start", "optimizer")
        else replace(event, evidence=f"Rank {ranks.rank}: {event.evidence}")
        for event in events
    ]
    return ranks.combine(named, _firsts) if ranks.is_any(bool(named)) else []


def _firsts(ranks: Sequence[Sequence[Nonfinite]]) -> list[Nonfinite]:
    by_step: dict[int, list[Nonfinite]] = {}
    for event in (event for events in ranks for event in events):
        by_step.setdefault(event.step, []).append(event)
    firsts = [first_of(by_step[step]) for step in sorted(by_step)]
    return [first for first in firsts if first is not None]
