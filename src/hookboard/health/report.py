"""Verdicts in words: the table of the page, and the lines in the terminal."""

import re
import textwrap
from collections.abc import Sequence

from hookboard.health.run import Run
from hookboard.health.verdict import Severity, Verdict
from hookboard.writers import Table, escaped, markdown

MOST_ROWS = 50
"""How many verdicts the table has at most."""

MOST_LINES = 3
"""How many verdicts the terminal gets at the end of a fit."""

WIDTH = 100
"""The width of the terminal, in characters."""

SYMBOLS: dict[Severity, str] = {"alarm": "▲", "note": "△"}
"""Every browser has them; coloured ones are missing on many a server, and TensorBoard shows no other colours."""

CELL, NAME = 56, 28
"""The most characters in a line of a cell, and of a name. Without breaks of ours TensorBoard makes the column of the
longest text so wide that it breaks the words of all others."""

COLUMNS = ("severity", "rule", "layer", "since", "until", "evidence", "advice", "look at")

_ACTIVATIONS, _GRADIENTS = "health/activation_rms", "health/gradient_rms"
_UPDATES, _DEAD, _BEFORE = "health/update_ratio", "health/dead_fraction", "health/before_nonfinite"

LOOK_AT = {
    "dead_units": _DEAD,
    "saturated": _ACTIVATIONS,
    "vanishing_gradient": _GRADIENTS,
    "exploding_gradient": _GRADIENTS,
    "activation_scale": _ACTIVATIONS,
    "no_gradient": _GRADIENTS,
    "not_updated": _UPDATES,
    "update_too_small": _UPDATES,
    "update_too_large": _UPDATES,
    "nonfinite": _BEFORE,
    "precision": _GRADIENTS,
    "collapsed": _ACTIVATIONS,
    "symmetric_units": _GRADIENTS,
    "input_scale": _ACTIVATIONS,
    "spike": _GRADIENTS,
    "not_learning": _GRADIENTS,
    "train_eval_gap": _ACTIVATIONS,
}
"""Rule to the tag that shows what it has seen."""


def table_of(run: Run, verdicts: Sequence[Verdict], every_n_steps: int | None = None) -> Table:
    """All verdicts as a table, worst first.

    Args:
        run: what was looked at.
        verdicts: worst first.
        every_n_steps: how many steps lie between two looks.
    """
    rest = len(verdicts) - MOST_ROWS
    seen = f"Looked at {_many(len(run.layers), 'layer')} at {_many(run.seen, 'step')} from {_ends(run)}"
    rhythm = f", every {_ordinal(every_n_steps)} step." if every_n_steps and every_n_steps > 1 else "."
    more = f"And {rest} more, the last of this order. " if rest > 0 else ""
    rows = tuple(_row(verdict) for verdict in verdicts[:MOST_ROWS])
    if not verdicts:
        rows = ((headline(run, verdicts), *[""] * (len(COLUMNS) - 1)),)  # for loggers that take rows alone
    cells = [_cells(verdict) for verdict in verdicts[:MOST_ROWS]]
    in_markdown = markdown(["verdict", "layer", "steps", "what is seen, and what to try"], cells) if cells else ""
    text = "\n\n".join(filter(None, [headline(run, verdicts), in_markdown, f"{more}{seen}{rhythm}"]))
    return Table(COLUMNS, rows, text)


def headline(run: Run, verdicts: Sequence[Verdict]) -> str:
    """How many verdicts there are, in one sentence."""
    where = f"in {_many(len(run.layers), 'layer')} over {_many(_steps(run), 'step')}"
    if not verdicts:
        return f"Nothing stands out {where}."
    alarms = sum(verdict.severity == "alarm" for verdict in verdicts)
    counts = [(alarms, "alarm"), (len(verdicts) - alarms, "note")]
    return f"{' and '.join(_many(count, noun) for count, noun in counts if count)} {where}."


def closing(run: Run, verdicts: Sequence[Verdict], places: Sequence[str] = ()) -> list[str]:
    """The lines at the end of a fit, in plain text, at most 100 characters each.

    Args:
        run: what was looked at.
        verdicts: worst first.
        places: where the page is to be found, a line for each logger.
    """
    lines = [f"HealthMonitor: {headline(run, verdicts)}"]
    for verdict in verdicts[:MOST_LINES]:
        lines += _wrapped(f"{_title(verdict)}: {verdict.evidence} Try: {verdict.advice}", "  ", 4)
    if len(verdicts) > MOST_LINES:
        lines.append(f"  and {len(verdicts) - MOST_LINES} more in monitor.verdicts")
    for place in places:
        lines += _wrapped(f"Look at: {place}", "  ", 4, is_path=True)
    return lines


def news(verdict: Verdict) -> str:
    """One line for a verdict that is new, at most 100 characters."""
    line = _one_line(f"HealthMonitor: {_title(verdict)}: {verdict.evidence}")
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 3].rstrip()}..."


def _title(verdict: Verdict) -> str:
    batch = "" if verdict.batch_idx is None else f" (batch {verdict.batch_idx})"
    until = "" if verdict.until is None or verdict.until == verdict.since else f" to {verdict.until}"
    when = "since step" if verdict.until is None else "at step" if not until else "from step"
    where = f" in {verdict.module}" if verdict.module else ""
    return f"{verdict.severity}: {verdict.rule}{where} {when} {verdict.since}{until}{batch}"


def _cells(verdict: Verdict) -> tuple[str, ...]:
    """A row in Markdown, of few columns: a card of TensorBoard is not wide."""
    symbol = f"{SYMBOLS[verdict.severity]} {verdict.severity}"
    strong = f"**{symbol}**" if verdict.severity == "alarm" else symbol
    steps = [f"{verdict.since} to", "now" if verdict.until is None else str(verdict.until)]
    if verdict.until == verdict.since:
        steps = [str(verdict.since)]
    if verdict.batch_idx is not None:
        steps.append(f"batch {verdict.batch_idx}")
    tag = LOOK_AT.get(verdict.rule, "")
    said = [_broken(verdict.evidence), f"**Try:** {_broken(verdict.advice)}", f"**See:** {tag}" if tag else ""]
    return (
        f"{strong}<br>{escaped(verdict.rule)}",
        "<br>".join(map(escaped, _name_in_lines(verdict.module or "the whole model"))),
        "<br>".join(steps),
        "<br>".join(filter(None, said)),
    )


def _broken(text: str) -> str:
    return "<br>".join(map(escaped, textwrap.wrap(text, CELL, break_on_hyphens=False)))


def _name_in_lines(name: str) -> list[str]:
    """A dotted name in lines of at most 28 characters where its words allow it."""
    lines = [""]
    for word in re.findall(r"[^.]*\.?", name):
        if lines[-1] and len(lines[-1]) + len(word) > NAME:
            lines.append("")
        lines[-1] += word
    return lines


def _row(verdict: Verdict) -> tuple[str, ...]:
    batch = "" if verdict.batch_idx is None else f", batch {verdict.batch_idx}"
    return (
        verdict.severity,
        verdict.rule,
        verdict.module or "the whole model",
        f"{verdict.since}{batch}",
        "now" if verdict.until is None else str(verdict.until),
        verdict.evidence,
        verdict.advice,
        LOOK_AT.get(verdict.rule, ""),
    )


def _wrapped(text: str, start: str, indent: int, is_path: bool = False) -> list[str]:
    # A path that is broken in two cannot be copied.
    return textwrap.wrap(
        _one_line(text),
        WIDTH,
        initial_indent=start,
        subsequent_indent=" " * indent,
        break_long_words=not is_path,
        break_on_hyphens=False,
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _steps(run: Run) -> int:
    return 0 if run.first is None else run.now.step - run.first.step + 1


def _ends(run: Run) -> str:
    return "nothing" if run.first is None else f"{run.first.step} to {run.now.step}"


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _ordinal(number: int) -> str:
    last = number % 100
    suffix = "th" if 10 < last < 20 else {1: "st", 2: "nd", 3: "rd"}.get(last % 10, "th")
    return f"{number}{suffix}"
