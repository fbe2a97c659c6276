"""`Nonfinite`: the step in which NaN or Inf appeared, and where."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from hookboard.health.look import Look
from hookboard.health.verdict import Symptom

Pass = Literal["batch", "forward", "backward", "optimizer", "start"]

_ORDER: tuple[Pass, ...] = ("start", "batch", "forward", "backward", "optimizer")
"""What comes first within a step."""


@dataclass(frozen=True)
class Nonfinite:
    """The step in which NaN or Inf appeared.

    Args:
        module: the dotted name of the module that gave them first; "" for code outside of any module, and where it is
            not known.
        during: the pass: `forward` or `backward`; `optimizer`, whose step spoiled the weights; `batch` if they came in
            with the data; `start` if the weights were spoiled before the first step.
        step: the optimizer step.
        batch_idx: the index of the batch.
        went_in: what the module took: a few words with numbers.
        evidence: one sentence with the numbers.
        advice: one sentence: what to try first.
        is_located: whether the place is known. Otherwise `evidence` says why not.
        parameter: the dotted name of the spoiled parameter, if it is one.
    """

    module: str
    during: Pass
    step: int
    batch_idx: int
    went_in: str
    evidence: str
    advice: str
    is_located: bool = True
    parameter: str = ""

    def symptom(self, more: int = 0) -> Symptom:
        """What the judge takes.

        Args:
            more: how many further steps had non-finite values.
        """
        also = f" {more} later {'step' if more == 1 else 'steps'} had non-finite values too." if more else ""
        return Symptom(
            self.module, self.evidence + also, self.advice, "alarm", since=self.step, batch_idx=self.batch_idx
        )


def first_of(events: Iterable[Nonfinite]) -> Nonfinite | None:
    """The earliest of the events of several ranks; of one step, one whose place is known. None if there is none."""

    def rank(event: Nonfinite) -> tuple[int, bool, int]:
        return event.step, not event.is_located, _ORDER.index(event.during)

    return min(events, key=rank, default=None)


def before_nonfinite(look: Look) -> str:
    """The readings of the last step before the event, as a table in Markdown: one row for each site."""
    lines = [
        f"Step {look.step}, batch {look.batch_idx}: the last measured step before the first non-finite value.",
        "",
        "| layer or parameter | values | RMS | min | max | NaN | Inf |",
        "|:--|:--|--:|--:|--:|--:|--:|",
    ]
    for site, reading in look.readings.items():
        m = reading.moments
        numbers = [f"{value:.3g}" for value in (m.rms, m.min, m.max)] if m.count else ["", "", ""]
        counts = [f"{int(count)}" if count else "" for count in (m.nan, m.posinf + m.neginf)]
        name = site.path.replace("|", "\\|") or "(the model)"
        if not site.name and site.role == "input":
            name = f"tensor {site.index} of the batch" if site.index else "the batch"
        lines.append(f"| {name} | {site.role} | {' | '.join([*numbers, *counts])} |")
    return "\n".join(lines)
