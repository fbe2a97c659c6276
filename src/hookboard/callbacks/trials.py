"""Experiments during a fit: when they are asked for, and what they need of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, NamedTuple

from torch import nn
from torch.nn.parameter import is_lazy

from hookboard.auditing import Finding
from hookboard.experiments import BATCHES, Experiments, Setting, Start, experiment, look_at_targets, read_apart, why_not
from hookboard.health import STEPS_BEFORE_STUCK, TELLABLE, WINDOWS_ALWAYS_ASKED, Judge, Symptom
from hookboard.loops import Loop
from hookboard.replay import CannotRunAgainError, undisturbed

MOST_BYTES = 1 << 30
"""The first values of more parameters are not kept (a choice)."""

READING = 0.2
"""The part of the budget in which batches are read (a choice)."""


class Wish(NamedTuple):
    """What experiments are to explain.

    Args:
        since: the optimizer step since which it lasts.
        is_stuck: whether the loss has not fallen so far.
        is_lost: whether the weights of now are of no use: they are not finite, or the loss has diverged.
        is_brief: whether nothing stands out: then only the targets are looked at.
    """

    since: int
    is_stuck: bool
    is_lost: bool = False
    is_brief: bool = False


def setting_of(loop: Loop, *, is_stuck: bool = False, start: Start | None = None) -> Setting:
    """Return how the model of a fit is trained."""
    return Setting(loop.model, loop.optimizers, None, loop.trainer, loop.steps_left, is_stuck, start)


def batches_of(loop: Loop, first: Sequence[Any], until: float) -> tuple[list[Any], str]:
    """Return some batches of the training, and why there are no more than the first.

    Args:
        loop: runs the fit.
        first: the batch that is about to be trained on, if there is one.
        until: after this time, on the clock of `perf_counter`, no further batch is read.
    """
    try:
        with undisturbed(loop.model):
            more = read_apart(loop.train_dataloader, BATCHES - len(first), until)
            return [*first, *(loop.on_device(batch) for batch in more)], ""
    except Exception as error:
        return [*first], str(error) if isinstance(error, CannotRunAgainError) else f"{type(error).__name__}: {error}"


def tried(loop: Loop, first: Sequence[Any], seconds: float, wish: Wish, start: Start | None = None) -> Experiments:
    """Experiment with the batches of a fit; everything is put back.

    Args:
        loop: runs the fit.
        first: the batch that is about to be trained on, if there is one.
        seconds: the budget.
        wish: what they are to explain.
        start: the first values of the parameters; None if they are not known.
    """
    began = perf_counter()
    setting = setting_of(loop, is_stuck=wish.is_stuck, start=start if wish.is_lost else None)
    reason = "there is no Trainer" if loop.trainer is None else why_not(setting, [None])
    if reason:
        return Experiments([], [f"Nothing was tried: {reason}."])
    batches, why = batches_of(loop, first, began + READING * seconds)
    if not batches:
        return Experiments([], [f"Nothing was tried: {why or 'there is no batch'}."])
    if wish.is_brief:
        return look_at_targets(setting, batches, began + seconds - perf_counter())
    # Half for the weights of now: where they cannot learn, a rate that was too large may have spoiled them.
    found = experiment(setting, batches, (began + seconds - perf_counter()) / (1 if setting.start or not start else 2))
    if start is None or setting.start is not None or all(one.rule != "cannot_learn" for one in found.findings):
        return found
    at_start = experiment(replace(setting, start=start), batches, began + seconds - perf_counter())
    return at_start if any(one.severity == "alarm" for one in at_start.findings) else found


def wish_of(judge: Judge, *, is_over: bool) -> Wish | None:
    """Return what experiments are to explain of a run; None for nothing.

    That is an alarm which follows from no other; or, when the first looks are over or the training is, a loss that has
    not fallen.

    Args:
        judge: of the run.
        is_over: whether the training has ended.
    """
    run, losses = judge.run, judge.run.losses
    if run.first is None:
        return None
    is_stuck = losses.is_known and not losses.is_learning
    alarms = [verdict for verdict in judge.verdicts if verdict.severity == "alarm"]
    if alarms:
        is_lost = losses.has_diverged or not losses.is_finite or any(one.rule == "nonfinite" for one in alarms)
        since = [verdict.since for verdict in alarms if verdict.rule in TELLABLE]
        begin = run.first.step if is_lost and not run.rate_jumps else min(since, default=0)
        return Wish(begin, is_stuck, is_lost) if since else None
    is_time = is_over or (run.seen >= WINDOWS_ALWAYS_ASKED * run.window and losses.steps >= STEPS_BEFORE_STUCK)
    return Wish(run.first.step, is_stuck, is_brief=not is_stuck) if is_time else None


@dataclass
class Trial:
    """The experiments of a fit: there is at most one series of them.

    Args:
        is_wanted: whether there are to be any, and they have not begun.
        start: the parameters with their first values, on the CPU, while experiments may come; None if they are too
            many.
        wish: what they are to explain; None for nothing yet.
        found: rule name and symptom of what they have found.
        said: what they have shown if none of that is an alarm, as a clause; "" for nothing.
    """

    is_wanted: bool = False
    start: Start | None = None
    wish: Wish | None = None
    found: Sequence[tuple[str, Symptom]] = ()
    said: str = ""

    def state_dict(self) -> dict[str, Any]:
        """Return its state, for a checkpoint."""
        return {"is_wanted": self.is_wanted, "found": list(self.found), "said": self.said}

    def load_state_dict(self, parts: Mapping[str, Any] | None) -> None:
        """Restore the state of a checkpoint; None if that has none."""
        if parts is not None:
            self.is_wanted = self.is_wanted and parts["is_wanted"]
            self.found, self.said = parts["found"], parts["said"]

    def keep(self, model: nn.Module) -> None:
        """Keep the first values of the parameters."""
        parameters = list(model.parameters())
        if not any(map(is_lazy, parameters)) and sum(p.nbytes for p in parameters) <= MOST_BYTES:
            self.start = [(p, p.detach().cpu().clone()) for p in parameters]

    def look_for_wish(self, judge: Judge, *, is_over: bool = False) -> None:
        """See whether a run asks for experiments now, see `wish_of`."""
        self.wish = wish_of(judge, is_over=is_over) if self.is_wanted else None

    def take(self, findings: Sequence[Finding], in_short: str, step: int) -> None:
        """Keep what they have found.

        Args:
            findings: alarms and notes.
            in_short: the outcome, as a clause.
            step: the optimizer step of now.
        """
        assert self.wish is not None
        self.found = [(one.rule, replace(one.symptom, is_root=False, since=self.wish.since)) for one in findings]
        is_explained = any(one.severity == "alarm" for one in findings)
        self.said = f"tried on a copy at step {step}: {in_short}" if in_short and not is_explained else ""
        self.wish = self.start = None
