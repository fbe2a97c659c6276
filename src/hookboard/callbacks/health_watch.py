"""`HealthWatch`: what `HealthMonitor` holds of one stage."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lightning.pytorch import Trainer
from torch.optim import SGD, Optimizer

from hookboard.callbacks.black_box import BlackBox
from hookboard.callbacks.loss_meter import LossMeter
from hookboard.callbacks.reporter import Reporter
from hookboard.callbacks.site_watch import SiteWatch
from hookboard.health import Judge, Look, Nonfinite, Stepped, Verdict, first_of
from hookboard.parameters import Weight
from hookboard.ranks import Ranks
from hookboard.recording import Reading


@dataclass
class HealthWatch(SiteWatch):
    """What the monitor holds of one stage.

    Args:
        losses: the loss of every step since the last look.
        stepped: during a due step, what the optimizers do with each weight, by its name.
        batch_idx: the index of the running batch.
        first_step: the optimizer step at which the fit began; None before.
        judge: judges the run; None in evaluations, on ranks that do not judge, and after a fault.
        reporter: tells what the judge says.
        black_box: finds the first NaN or Inf; None outside of training.
        told: how many of the black box's events have been told.
    """

    losses: LossMeter = field(default_factory=LossMeter, kw_only=True)
    stepped: dict[str, Stepped] = field(default_factory=dict, kw_only=True)
    batch_idx: int = field(default=0, kw_only=True)
    first_step: int | None = field(default=None, kw_only=True)
    judge: Judge | None = field(default=None, kw_only=True)
    reporter: Reporter | None = field(default=None, kw_only=True)
    black_box: BlackBox | None = field(default=None, kw_only=True)
    told: int = field(default=0, kw_only=True)

    def judged(self, step: int, readings: Sequence[Reading]) -> tuple[Verdict, ...]:
        """Take a look, judge the run, and tell what the judge says.

        Args:
            step: the optimizer step.
            readings: all readings of the step.

        Returns:
            The verdicts, worst first.
        """
        assert self.judge is not None
        assert self.reporter is not None
        overflowed = any(reading.overflowed for reading in readings)
        by_site = {reading.site: reading for reading in readings}
        frozen = {name for name, w in self.weights.items() if not any(p.requires_grad for p in w.parameters)}
        losses, is_scaled = self.losses.take(), self.scaling is not None
        self.judge.see(Look(step, self.batch_idx, by_site, losses, self.stepped, overflowed, frozen, is_scaled))
        verdicts = self.judge.verdicts
        self.reporter.after_look(verdicts)
        return verdicts

    def new_events(self) -> list[Nonfinite]:
        """What the black box has found since the last call."""
        events = [] if self.black_box is None else self.black_box.events[self.told :]
        self.told += len(events)
        return events

    def tell(self, events: Sequence[Nonfinite]) -> tuple[Verdict, ...]:
        """Judge and tell what the black box has found; returns the verdicts, worst first."""
        if self.judge is None or self.reporter is None:
            return ()
        for event in events:
            self.judge.add("nonfinite", event.symptom(), event.step, is_located=event.is_located)
        looks, verdicts = self.judge.run.looks, self.judge.verdicts
        self.reporter.at_event(verdicts, events[0].step, looks[-1] if looks else None)
        return verdicts

    def close(self) -> None:
        """Tell the verdict of the run."""
        if self.judge is not None and self.reporter is not None:
            self.reporter.close(self.judge.verdicts)


def first_of_ranks(trainer: Trainer, mine: Sequence[Nonfinite]) -> list[Nonfinite]:
    """The earliest of the events of all ranks; empty if there is none. Every rank must call this."""
    if not trainer.strategy.reduce_boolean_decision(bool(mine), all=False):
        return []
    first = first_of(event for events in Ranks().gathered(mine) for event in events)
    return [] if first is None else [first]


def stepped_by(optimizer: Optimizer, weights: Mapping[str, Weight]) -> dict[str, Stepped]:
    """What an optimizer does with each of these weights, by its name, at the rates that are in force now.

    A weight that is frozen now (`requires_grad` is False) is left out: the optimizer holds it and does nothing with it.
    """
    rates = {id(p): float(group.get("lr", 0.0)) for group in optimizer.param_groups for p in group["params"]}
    kind, is_adaptive = type(optimizer).__name__, not isinstance(optimizer, SGD)
    return {
        name: Stepped(kind, rates[id(parameter)], is_adaptive)
        for name, weight in weights.items()
        for parameter in weight.parameters
        if id(parameter) in rates and parameter.requires_grad
    }
