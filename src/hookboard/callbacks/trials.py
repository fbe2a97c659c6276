"""Experiments during a fit: decides when to run them, and takes batches and settings from the loop."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, NamedTuple

from torch import nn
from torch.nn.parameter import is_lazy

from hookboard.auditing import Finding
from hookboard.experiments import BATCHES, Experiments, Setting, Start, experiment, read_apart, why_not
from hookboard.health import STEPS_BEFORE_STUCK, TELLABLE, WINDOWS_ALWAYS_ASKED, Judge, Symptom
from hookboard.layouts import bytes_of
from hookboard.loops import Loop
from hookboard.replay import CannotRunAgainError, undisturbed

MAX_KEPT_BYTES = 1 << 30
"""Maximum bytes of parameters whose first values are kept (a choice)."""

READING_SHARE = 0.2
"""Maximum share of the budget that reading batches may take (a choice)."""


class Question(NamedTuple):
    """The trouble in a run whose cause experiments should find.

    Args:
        since: the optimizer step at which the trouble began.
        is_stuck: True if the loss has not fallen so far.
        is_from_start: True if the experiments start from the first weights: the present ones are useless, because they
            are not finite or the loss has diverged; or have learned already what the experiments ask.
    """

    since: int
    is_stuck: bool
    is_from_start: bool = False


def setting_of(loop: Loop, *, is_stuck: bool = False, start: Start | None = None) -> Setting:
    """Return the model and optimizers of a fit, as the experiments take them."""
    return Setting(loop.model, loop.optimizers, None, loop.trainer, loop.steps_left, is_stuck, start)


def batches_of(loop: Loop, first: Sequence[Any], until: float) -> tuple[list[Any], str]:
    """Return up to BATCHES training batches on the model's device, those in `first` included; and "".

    After an error, return `first` alone, and why no further batch could be read, as a clause.

    Args:
        loop: the loop of the fit.
        first: the batch that is about to be trained on, in a list; empty if there is none.
        until: the time of `perf_counter` after which no further batch is read.
    """
    try:
        with undisturbed(loop.model):
            more = read_apart(loop.train_dataloader, BATCHES - len(first), until)
            return [*first, *(loop.on_device(batch) for batch in more)], ""
    except Exception as error:
        return [*first], str(error) if isinstance(error, CannotRunAgainError) else f"{type(error).__name__}: {error}"


def run_experiments(
    loop: Loop, first: Sequence[Any], seconds: float, question: Question, start: Start | None = None
) -> Experiments:
    """Train some steps on batches of a fit, restore everything, and return what was found, or why nothing was tried.

    Args:
        loop: the loop of the fit.
        first: the batch that is about to be trained on, in a list; empty if there is none.
        seconds: the budget.
        question: the trouble to find the cause of.
        start: the first values of the parameters; None if they were not kept.
    """
    began = perf_counter()
    setting = setting_of(loop, is_stuck=question.is_stuck, start=start if question.is_from_start else None)
    reason = "there is no Trainer" if loop.trainer is None else why_not(setting, [None])
    if reason:
        return Experiments([], [f"Nothing was tried: {reason}."])
    batches, why = batches_of(loop, first, began + READING_SHARE * seconds)
    if not batches:
        return Experiments([], [f"Nothing was tried: {why or 'there is no batch'}."])
    # Half of it for the present weights. If they cannot learn, the first ones may: the rate may have been too large.
    found = experiment(setting, batches, (began + seconds - perf_counter()) / (1 if setting.start or not start else 2))
    if start is None or setting.start is not None or all(one.rule != "cannot_learn" for one in found.findings):
        return found
    at_start = experiment(replace(setting, start=start), batches, began + seconds - perf_counter())
    return at_start if any(one.severity == "alarm" for one in at_start.findings) else found


def question_of(judge: Judge, *, is_over: bool) -> Question | None:
    """Return what experiments should find the cause of; None if there is no reason for experiments now.

    With alarms, that is an alarm of a rule in TELLABLE. Without one it is whether the model can learn at all, at which
    rate and from these targets, once enough steps were measured or the training has ended.

    Args:
        judge: the judge of the run.
        is_over: True if the training has ended.
    """
    run, losses = judge.run, judge.run.losses
    if run.first is None:
        return None
    is_stuck = losses.is_known and (losses.is_stuck or not losses.is_learning)
    alarms = [verdict for verdict in judge.verdicts if verdict.severity == "alarm"]
    if alarms:
        is_lost = losses.has_diverged or not losses.is_finite or any(one.rule == "nonfinite" for one in alarms)
        since = [verdict.since for verdict in alarms if verdict.rule in TELLABLE]
        begin = run.first.step if is_lost and not run.rate_jumps else min(since, default=0)
        return Question(begin, is_stuck, is_lost) if since else None
    is_time = is_over or (run.seen >= WINDOWS_ALWAYS_ASKED * run.window and losses.steps >= STEPS_BEFORE_STUCK)
    return Question(run.first.step, is_stuck, is_from_start=True) if is_time else None


@dataclass
class ExperimentState:
    """Whether experiments are to be run in a fit, which happens at most once, and what they have found.

    Args:
        is_wanted: True if the user wants experiments, and they have not been run.
        start: each parameter with a CPU copy of its first value; None if `keep` made none, and after the experiments.
        question: the trouble they should find the cause of; None while there is no reason for experiments.
        found: rule name and symptom of each finding.
        said: the outcome as a clause, if no finding is an alarm; otherwise "".
    """

    is_wanted: bool = False
    start: Start | None = None
    question: Question | None = None
    found: Sequence[tuple[str, Symptom]] = ()
    said: str = ""

    def state_dict(self) -> dict[str, Any]:
        """Return `is_wanted`, `found` and `said`, for a checkpoint."""
        return {"is_wanted": self.is_wanted, "found": list(self.found), "said": self.said}

    def load_state_dict(self, parts: Mapping[str, Any] | None) -> None:
        """Restore `found` and `said`; experiments that had run before the checkpoint are not run again.

        No effect for None, from a checkpoint without this state.
        """
        if parts is not None:
            self.is_wanted = self.is_wanted and parts["is_wanted"]
            self.found, self.said = parts["found"], parts["said"]

    def keep(self, model: nn.Module) -> None:
        """Copy the present values of the parameters into `start`, if none is lazy and MAX_KEPT_BYTES are enough."""
        parameters = list(model.parameters())
        if not any(map(is_lazy, parameters)) and sum(map(bytes_of, parameters)) <= MAX_KEPT_BYTES:
            self.start = [(p, p.detach().cpu().clone()) for p in parameters]

    def update_question(self, judge: Judge, *, is_over: bool = False) -> None:
        """Set `question` from the present state of the run, see `question_of`; to None unless `is_wanted`."""
        self.question = question_of(judge, is_over=is_over) if self.is_wanted else None

    def take(self, findings: Sequence[Finding], in_short: str, step: int) -> None:
        """Set `found` and `said`, and clear `question` and `start`.

        Args:
            findings: the alarms and notes of the experiments.
            in_short: their outcome, as a clause.
            step: the present optimizer step.
        """
        assert self.question is not None
        self.found = [(one.rule, replace(one.symptom, is_root=False, since=self.question.since)) for one in findings]
        is_explained = any(one.severity == "alarm" for one in findings)
        self.said = f"tried on a copy at step {step}: {in_short}" if in_short and not is_explained else ""
        self.question = self.start = None
