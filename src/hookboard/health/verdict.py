"""`Verdict`: what is said of a run. `Symptom`: what a rule sees at one step."""

from dataclasses import dataclass
from typing import Literal, get_args

from hookboard.checks import check_name, check_number, check_switches, check_text, check_whole

Severity = Literal["alarm", "note"]


@dataclass(frozen=True)
class Verdict:
    """What `HealthMonitor` says of one module, or of the whole model.

    Args:
        severity: `alarm` if someone who knew would stop the run or mend the code; `note` if it is worth knowing.
        rule: the name of the rule.
        module: the dotted name of the layer where the fault lies; "" for the whole model. Of a chain of sick layers
            it is the one where it starts.
        since: the optimizer step of the first symptom.
        until: the optimizer step of the last symptom; None while it lasts.
        evidence: one sentence with the numbers, and what is usual for this model.
        advice: one sentence: what to try first.
        batch_idx: the index of the batch, for what happens in a single step; otherwise None.
    """

    severity: Severity
    rule: str
    module: str
    since: int
    until: int | None
    evidence: str
    advice: str
    batch_idx: int | None = None


@dataclass(frozen=True)
class Symptom:
    """What a rule sees at one step. It becomes a verdict when it has lasted.

    Args:
        module: the dotted name of the layer; "" for the whole model.
        evidence: one sentence with the numbers, and what is usual for this model.
        advice: one sentence: what to try first.
        severity: `alarm` only for harm that cannot be explained away, or that the loss shows; otherwise `note`.
        size: how bad it is, in any unit: of equal verdicts of one rule the largest comes first.
        since: the optimizer step at which it began. Left out: the step at which the rule first saw it.
        until: the optimizer step at which it was seen last, where the rule tells of something that is over by now, such
            as the cause of a harm that lasts. Left out: it is there now.
        batch_idx: the index of the batch, for what happens in a single step.
        is_root: whether it follows from no other fault, as a layer that is in no optimizer.
        is_hard: whether its alarm does not need the loss, which by now may show harm that it has done.
    """

    module: str
    evidence: str
    advice: str
    severity: Severity = "note"
    size: float = 0.0
    since: int | None = None
    batch_idx: int | None = None
    is_root: bool = False
    is_hard: bool = False
    until: int | None = None

    def __post_init__(self) -> None:
        check_text(module=self.module, evidence=self.evidence, advice=self.advice)
        check_name("severity", self.severity, get_args(Severity))
        check_number("size", self.size)
        check_whole("since", self.since, 0, "optimizer steps", "for now")
        check_whole("until", self.until, 0, "optimizer steps", "while it lasts")
        check_whole("batch_idx", self.batch_idx, 0, otherwise="")
        check_switches(is_root=self.is_root, is_hard=self.is_hard)
