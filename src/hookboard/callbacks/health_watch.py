"""`HealthWatch`: what `HealthMonitor` holds of one stage."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from lightning.pytorch import Trainer
from torch.optim import SGD, Optimizer

from hookboard.callbacks.layer_news import Facts
from hookboard.callbacks.loss_meter import Losses, LossMeter, mean_over_ranks
from hookboard.callbacks.reporter import Reporter
from hookboard.callbacks.site_watch import SiteWatch
from hookboard.first_nan import BlackBox
from hookboard.health import (
    Judge,
    Look,
    Nonfinite,
    Stepped,
    Verdict,
    ended_by,
    first_of,
    go_on,
    parts_of,
)
from hookboard.layers import Layer
from hookboard.loops import alert, logged_step
from hookboard.messages import warn_switched_off
from hookboard.parameters import Weight
from hookboard.ranks import Ranks
from hookboard.recording import Readings

MEASURED = ("rms", "zero_fraction")
"""The statistics that make the recorder fill the columns that rules read."""

Finding = Literal["auto", "exact", "late"]
"""How the module that gave the first NaN is found."""

EVALUATED = 4
"""How many batches of each validation loop are looked at."""


_KEPT = ("first_step", "looks", "told")


@dataclass
class HealthWatch(SiteWatch):
    """What the monitor holds of one stage.

    Args:
        losses: the loss of every step since the last look.
        stepped: during a due step, what the optimizers do with each weight, by its name.
        batch_idx: the index of the running batch.
        first_step: the optimizer step at which the fit began; None before.
        looks: how many training steps have been measured.
        judge: judges the run; None in evaluations, on ranks that do not judge, and after a fault.
        reporter: tells what the judge says.
        black_box: finds the first NaN or Inf; None outside of training.
        told: how many of the black box's events have been told.
        is_ending: whether it has ended the fit.
        why_silent: why layers gave no output at the first look, by their names; None before.
        is_asked_to_end: whether the last look on all ranks has asked for that.
        earlier: rule and module of the alarms of a fit that this one continues; they do not end it.
    """

    losses: LossMeter = field(default_factory=LossMeter, kw_only=True)
    stepped: dict[str, Stepped] = field(default_factory=dict, kw_only=True)
    batch_idx: int = field(default=0, kw_only=True)
    first_step: int | None = field(default=None, kw_only=True)
    looks: int = field(default=0, kw_only=True)
    judge: Judge | None = field(default=None, kw_only=True)
    reporter: Reporter | None = field(default=None, kw_only=True)
    black_box: BlackBox | None = field(default=None, kw_only=True)
    told: int = field(default=0, kw_only=True)
    is_ending: bool = field(default=False, kw_only=True)
    is_asked_to_end: bool = field(default=False, kw_only=True)
    why_silent: dict[str, str] | None = field(default=None, kw_only=True)
    earlier: frozenset[tuple[str, str]] = field(default=frozenset(), kw_only=True)

    def parts(self, again: tuple[int, int] | None) -> dict[str, Any]:
        """Besides, what the judge and the black box know, and the losses that no look has taken yet."""
        return {
            **super().parts(again),
            **{name: getattr(self, name) for name in _KEPT},
            "losses": self.losses.parts(again),
            "judge": None if self.judge is None else parts_of(self.judge),
            "alarms": set() if self.reporter is None else self.reporter.alarms,
            "black_box": None if self.black_box is None else self.black_box.parts(),
        }

    def go_on(self, parts: Mapping[str, Any]) -> None:
        """Go on judging the same run. A rank without a judge keeps to the same looks."""
        if self.judge is not None and self.reporter is not None and parts["judge"] is not None:
            go_on(self.judge, parts["judge"], {layer.name: layer for layer in self.judge.run.layers})
            self.reporter.alarms = parts["alarms"]
            self.earlier = frozenset((v.rule, v.module) for v in self.judge.verdicts if v.severity == "alarm")
        if self.black_box is not None and parts["black_box"] is not None:
            self.black_box.go_on(parts["black_box"])
        vars(self).update({name: parts[name] for name in _KEPT})
        self.losses.go_on(parts["losses"])
        super().go_on(parts)

    def begin_judging(self, judge: Judge) -> None:
        """Have this judge judge the run, and tell what it says."""
        self.judge, self.reporter = judge, Reporter(judge, self.loggers, self.every_n_steps)

    def note_gaps(self) -> None:
        """Note at the first look why layers gave no output; what never gives any is told with the verdict."""
        self.gaps_are_named = True
        if self.why_silent is None:
            names = [name for name, role in self.taps.expected() if role == "output"]
            self.why_silent = {name: self.taps.why_silent(name, "output") for name in names}

    def look(
        self, step: int, facts: Facts, losses: Losses, ranks: Ranks | None, scalars: Mapping[str, float]
    ) -> Callable[[Readings, Sequence[float]], tuple[Verdict, ...] | None]:
        """Return what takes a look, judges the run, and tells what the judge says, in any thread.

        It is called with the readings that are not empty, and with the losses that came along. It returns the verdicts,
        worst first; None where this rank does not judge. Of several ranks each must call it.

        Args:
            step: the optimizer step.
            facts: of the layers.
            losses: those since the last look.
            ranks: those that share their losses and events; None if there are no others.
            scalars: what is written besides, by tag.
        """
        self.looks += 1
        events: list[Nonfinite] = [] if ranks is None else self.new_events()
        frozen = {name for name, w in self.weights.items() if not any(p.requires_grad for p in w.parameters)}
        is_scaled, batch_idx = self.scaling is not None, self.batch_idx
        stepped, self.stepped = self.stepped, {}
        why_silent = self.why_silent or {}

        def take(readings: Readings, along: Sequence[float]) -> tuple[Verdict, ...] | None:
            seen, told = losses.read(along), events
            if ranks is not None:
                seen, told = mean_over_ranks(ranks, seen), firsts_over_ranks(ranks, told)
            overflowed = is_scaled and bool(readings.overflowed.any())
            look = Look(step, batch_idx, readings, seen, stepped, overflowed, frozen, is_scaled)

            def judged(judge: Judge, reporter: Reporter) -> None:
                if told:
                    self.tell(told)
                judge.run.why_silent = why_silent
                judge.see(look)
                layers = judge.run.layers
                records = self.news.in_order(
                    layers, lambda: [layer.name for layer in layers], facts, self.recorder, self.every_n_steps
                )
                reporter.after_look(judge.verdicts, records, scalars)

            return self._judged(judged)

        return take

    def evaluation(self, step: int) -> Callable[[Readings, Sequence[float]], tuple[Verdict, ...] | None]:
        """Return the same for the readings of an evaluation loop in this training."""
        return lambda readings, _: self._judged(lambda judge, _: judge.see_evaluation(Look(step, 0, readings)))

    def _judged(self, see: Callable[[Judge, Reporter], None]) -> tuple[Verdict, ...] | None:
        if self.judge is None or self.reporter is None:
            return None
        try:
            see(self.judge, self.reporter)
            return self.judge.verdicts
        except Exception as error:  # what is measured is still worth having, here and on other ranks
            self.judge = None
            warn_switched_off("judging by HealthMonitor", error)
            return None

    def follow(self, known: dict[str, Layer], layers: Mapping[str, Layer]) -> None:
        """Take other layers, where the model has changed; `known` is what the recorder reads."""
        known.clear()
        known.update(layers)
        self.recorder.forget_shapes()
        if self.judge is not None:
            self.judge.run.follow(known)

    @property
    def has_news(self) -> bool:
        """Whether the black box has found something since the last call of `new_events`."""
        return self.black_box is not None and len(self.black_box.events) > self.told

    def new_events(self) -> list[Nonfinite]:
        """What the black box has found since the last call."""
        events = [] if self.black_box is None else self.black_box.events[self.told :]
        self.told += len(events)
        return events

    def tell(self, events: Sequence[Nonfinite]) -> tuple[Verdict, ...]:
        """Judge and tell what the black box has found; returns the verdicts, worst first."""
        assert self.judge is not None
        assert self.reporter is not None
        is_searched = self.black_box is not None and self.black_box.is_exact
        for event in events:
            self.judge.add("nonfinite", event.symptom(), event.step, event.is_located, is_searched)
        looks, verdicts = self.judge.run.looks, self.judge.verdicts
        self.reporter.at_event(verdicts, events[0].step, looks[-1] if looks else None)
        return verdicts

    def guilty(self, stop_on: str | Sequence[str], verdicts: Sequence[Verdict]) -> Verdict | None:
        """The first alarm of a rule of `stop_on`, which may be `alarm` for any; of those of this fit."""
        asked = {stop_on} if isinstance(stop_on, str) else {*stop_on}
        alarms = (v for v in verdicts if v.severity == "alarm" and (v.rule, v.module) not in self.earlier)
        return next((v for v in alarms if {"alarm", v.rule} & asked), None)

    def end_if_asked(
        self, trainer: Trainer, stop_on: str | Sequence[str], verdicts: Sequence[Verdict], with_others: bool
    ) -> None:
        """End the fit with this batch if a rule of `stop_on` gives an alarm; several ranks if they have agreed on it.

        Args:
            trainer: the Trainer.
            stop_on: see `guilty`.
            verdicts: of this rank, worst first.
            with_others: whether there are other ranks.
        """
        guilty = self.guilty(stop_on, verdicts)
        if self.is_asked_to_end if with_others else guilty is not None:
            trainer.should_stop = self.is_ending = True
            if guilty is not None:
                alert(f"HealthMonitor {ended_by(guilty, logged_step(trainer))}")

    def close(self) -> None:
        """Tell the verdict of the run, after an exception or a fault too; it does not raise."""
        if self.black_box is not None:
            self.black_box.end_batch()
        try:
            if self.judge is not None and self.reporter is not None:
                self.reporter.close(self.judge.verdicts)
        except Exception as error:
            warn_switched_off("the last verdict of HealthMonitor", error)


def firsts_over_ranks(ranks: Ranks, events: list[Nonfinite]) -> list[Nonfinite]:
    """One event of each step that had any, of those of all ranks. Every rank must call this.

    Each rank has batches of its own, so an event that a batch has led to names the rank.
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


def steps_of(optimizer: Optimizer, weights: Mapping[str, Weight]) -> dict[str, Stepped]:
    """What an optimizer does with each of these weights, by its name, at the rates that are in force now.

    A weight that is frozen now (`requires_grad` is False) is left out: the optimizer holds it and does nothing with it.
    """
    kind, is_adaptive = type(optimizer).__name__, not isinstance(optimizer, SGD)
    stepped = {}
    for group in optimizer.param_groups:
        stepped.update(dict.fromkeys(map(id, group["params"]), Stepped(kind, float(group.get("lr", 0.0)), is_adaptive)))
    return {
        name: stepped[id(parameter)]
        for name, weight in weights.items()
        for parameter in weight.parameters
        if id(parameter) in stepped and parameter.requires_grad
    }
