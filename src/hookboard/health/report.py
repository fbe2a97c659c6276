"""Verdicts in words, in the table of the page and in the terminal; and the scalars of the page with their charts."""

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from hookboard.health.folding import folded_verdicts
from hookboard.health.robust import median, percentiles
from hookboard.health.rule import Severity, Verdict
from hookboard.health.run import Run
from hookboard.measure import MOST_CHANNELS
from hookboard.patterns import folded
from hookboard.writers import Layout, Table, escaped, markdown

CHARTED = {
    "activation_rms": "RMS of activations",
    "gradient_rms": "RMS of gradients",
    "update_ratio": "update-to-weight ratio",
    "dead_fraction": "share of dead units",
}
"""Quantity -> its name in charts and heat maps."""

PERCENTILES = {"p10": 10, "median": 50, "p90": 90}


def scalars(run: Run, verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Return four numbers for each quantity of the latest look, by tag: 16 whatever the number of layers.

    A quantity that no layer has is left out.
    """
    found: dict[str, float] = {}
    for quantity in CHARTED:
        values = run.recent(quantity)[:, -1]
        finite = sorted(values[np.isfinite(values)].tolist())
        if finite:
            for name, value in zip(PERCENTILES, percentiles(finite, PERCENTILES.values()), strict=True):
                found[f"health/{quantity}/{name}"] = value
            layer = worst(quantity, run, verdicts)
            if layer is not None:
                found[f"health/{quantity}/worst"] = layer[1]
    return found


def layout() -> Layout:
    """Return the charts of TensorBoard's custom scalars: for each quantity the usual values, and the worst layer."""
    usual = {
        f"{words}: median, 10 to 90 % of layers": ["Margin", _tags(quantity, "median", "p10", "p90")]
        for quantity, words in CHARTED.items()
    }
    worst = {
        f"{words}: worst layer and median": ["Multiline", _tags(quantity, "worst", "median")]
        for quantity, words in CHARTED.items()
    }
    return {"health: all layers": usual, "health: the worst layer": worst}


def worst(quantity: str, run: Run, verdicts: Sequence[Verdict]) -> tuple[str, float] | None:
    """Return name and value of the layer with the worst verdict; without one, of the layer farthest from the others.

    Of dead units the greatest share. None if no layer has a finite value.
    """
    values = run.recent(quantity)[:, -1]
    places = np.flatnonzero(np.isfinite(values))
    if not len(places):
        return None
    if quantity == "dead_fraction":
        place = int(places[np.argmax(values[places])])
    else:
        lasting = (run.place(verdict.module) for verdict in verdicts if verdict.until is None)
        sick = next((place for place in lasting if place in places), None)
        place = _farthest(values, places) if sick is None else sick
    return run.layers[place].name, float(values[place])


def _farthest(values: np.ndarray, places: np.ndarray) -> int:
    """Return the one of these places whose value is farthest from the others on a logarithmic scale."""
    logs = np.log10(np.maximum(values[places], np.finfo(np.float64).tiny))
    return int(places[np.argmax(np.abs(logs - median(logs)))])


def _tags(quantity: str, *names: str) -> list[str]:
    return [f"health/{quantity}/{name}" for name in names]


TABLE_ROWS_MAX = 50
"""Maximum number of verdicts in the table."""

CLOSING_VERDICTS_MAX = 3
"""Maximum number of verdicts printed to the terminal at the end of a fit."""

TERMINAL_WIDTH = 100
"""Width of the terminal output, in characters."""

SYMBOLS: dict[Severity, str] = {"alarm": "▲", "note": "△"}
"""Symbols that every browser can show; coloured ones are missing on many servers, and TensorBoard shows no other
colours."""

CELL_WIDTH = 56
"""Maximum number of characters in a line of a cell. Without these line breaks TensorBoard makes the column of the
longest text so wide that it breaks the words of all others."""

NAME_WIDTH = 28
"""Maximum number of characters in a line of a layer's name."""

TABLE_COLUMNS = ("severity", "rule", "layer", "since", "until", "evidence", "advice", "look at")


def seen_in(look_at: str) -> str:
    """Return the quantity in whose map a verdict can be seen that this tag shows; "" if in none."""
    # A layer is dead by the activation after it, which is another row; its own outputs show it better.
    quantity = look_at.removeprefix("health/").replace("dead_fraction", "activation_rms")
    return quantity if quantity in CHARTED else ""


def table_of(
    run: Run, verdicts: Sequence[Verdict], every_n_steps: int | None = None, look_at: Mapping[str, str] | None = None
) -> Table:
    """Return all verdicts as a table, worst first.

    Args:
        run: what was looked at.
        verdicts: worst first.
        every_n_steps: how many steps lie between two looks.
        look_at: rule to the tag of what shows its symptoms.
    """
    shown_by = look_at or {}
    shown = folded_verdicts(verdicts, [layer.name for layer in run.layers])
    rest = len(shown) - TABLE_ROWS_MAX
    seen = f"Looked at {_layers(run)} at {_many(run.seen, 'step')} from {_ends(run)}"
    rhythm = f", every {_ordinal(every_n_steps)} step." if every_n_steps and every_n_steps > 1 else "."
    more = f"And {rest} more, further down this order. " if rest > 0 else ""
    rows = tuple(_row(verdict, shown_by.get(verdict.rule, "")) for verdict in verdicts[:TABLE_ROWS_MAX])
    if not verdicts:
        rows = ((headline(run, verdicts), *[""] * (len(TABLE_COLUMNS) - 1)),)  # for loggers that take rows alone
    cells = [_cells(verdict, shown_by.get(verdict.rule, "")) for verdict in shown[:TABLE_ROWS_MAX]]
    in_markdown = markdown(["verdict", "layer", "steps", "what is seen, and what to try"], cells) if cells else ""
    last = f"{more}{seen}{rhythm}{_worst_layers(run, verdicts)}{_sampled(run)}{escaped(_without_output(run))}"
    text = "\n\n".join(filter(None, [headline(run, verdicts), caveat(run, verdicts), in_markdown, last]))
    return Table(TABLE_COLUMNS, rows, text)


def headline(run: Run, verdicts: Sequence[Verdict]) -> str:
    """Return the number of verdicts in one sentence; it says so if there were too few looks to judge."""
    alarms = sum(verdict.severity == "alarm" for verdict in verdicts)
    counts = [(alarms, "alarm"), (len(verdicts) - alarms, "note")]
    found = " and ".join(_many(count, noun) for count, noun in counts if count) or "Nothing stands out"
    where = f"{found} in {_layers(run)}"
    unseen = f"; {len(run.unseen)} more gave no output" if run.unseen else ""
    if run.seen < run.window:
        looks = f"there {'was' if run.seen == 1 else 'were'} only {_many(run.seen, 'look')}"
        where = f"{where}, but" if verdicts else f"Not judged yet, {_layers(run)}:"
        return f"{where} {looks}, and most verdicts need {run.window}; in a short run, lower every_n_steps{unseen}."
    return f"{where} at {_many(run.seen, 'look')}, from step {_ends(run)}{unseen}."


def caveat(run: Run, verdicts: Sequence[Verdict]) -> str:
    """Return what rules have looked at and what they cannot see, for a judged run without an alarm; otherwise ""."""
    if run.seen < run.window or any(verdict.severity == "alarm" for verdict in verdicts):
        return ""
    own = [layer for layer in run.layers if layer.weights]
    trained = sum(any(name in run.peak_rate for name in layer.weights) for layer in own)
    some = f" Optimizers step weights of {trained} of {_many(len(own), 'layer')} that have any." if own else ""
    return (
        "Rules have looked at the numbers of activations, gradients, weights and updates, and at the loss."
        f"{some if trained < len(own) else ''} They cannot see whether labels belong to their inputs, whether the loss "
        "is the right one, or whether something is frozen by mistake."
    )


def closing(run: Run, verdicts: Sequence[Verdict], places: Sequence[str] = ()) -> list[str]:
    """Return the lines printed at the end of a fit, in plain text, at most 100 characters each.

    Args:
        run: what was looked at.
        verdicts: worst first.
        places: where the page is to be found, a line for each logger.
    """
    lines = [f"HealthMonitor: {headline(run, verdicts)}"]
    lines += _wrapped(caveat(run, verdicts), "  ", 4)
    shown = folded_verdicts(verdicts, [layer.name for layer in run.layers])
    for verdict in shown[:CLOSING_VERDICTS_MAX]:
        lines += _wrapped(f"{_title(verdict)}: {_evidence(verdict)} Try: {_advice(verdict)}", "  ", 4)
    if len(shown) > CLOSING_VERDICTS_MAX:
        table = "the table health/verdict of the loggers and in " if places else ""
        lines.append(f"  and {len(shown) - CLOSING_VERDICTS_MAX} more in {table}monitor.verdicts")
    lines += _wrapped(_sampled(run) + _without_output(run), "  ", 4)
    for place in places:
        lines += _wrapped(f"Look at: {place}", "  ", 4, is_path=True)
    return lines


def news(verdict: Verdict) -> str:
    """Return the text printed for a new verdict: its evidence in full, in lines of at most 100 characters."""
    return "\n".join(_wrapped(f"HealthMonitor: {_title(verdict)}: {_evidence(verdict)}", "", 4))


def sentence(text: str, module: str = "") -> str:
    """Format a text as a sentence, with a capital (unless it begins with the layer) and a full stop.

    Args:
        text: evidence or advice.
        module: the layer that it may begin with.

    >>> sentence("its output grows (it follows from spike)")
    'Its output grows (it follows from spike).'
    >>> sentence("head gave 0", "head"), sentence("net.0 gave 0!")
    ('head gave 0.', 'net.0 gave 0!')
    """
    text = text.strip()
    if text and text[-1] not in ".!?":
        text += "."
    first = re.match(r"[a-z][a-z'-]*(?=[\s,;:]|\.?$)", text)
    return text if first is None or first.group() == module else text[0].upper() + text[1:]


def in_sentences(verdict: Verdict) -> Verdict:
    """Return the verdict with evidence and advice in the words that are shown."""
    return replace(verdict, evidence=_evidence(verdict), advice=_advice(verdict))


def ended_by(verdict: Verdict, step: int) -> str:
    """Return a sentence without its subject: the fit ends after this optimizer step because of an alarm."""
    where = f" in {verdict.module}" if verdict.module else ""
    return f"ends the fit after step {step} because of {verdict.rule}{where}. {_evidence(verdict)}"


def _evidence(verdict: Verdict) -> str:
    said = verdict.evidence
    if verdict.until is not None:  # it was seen while it lasted
        said = re.sub(r"\bsince step (\d+)", rf"from step \1 to {verdict.until}", said)
    return sentence(said, verdict.module)


def _advice(verdict: Verdict) -> str:
    return sentence(verdict.advice, verdict.module)


def _title(verdict: Verdict) -> str:
    batch = "" if verdict.batch_idx is None else f" (batch {verdict.batch_idx})"
    until = "" if verdict.until is None or verdict.until == verdict.since else f" to {verdict.until}"
    when = "since step" if verdict.until is None else "at step" if not until else "from step"
    where = f" in {verdict.module}" if verdict.module else ""
    return f"{verdict.severity}: {verdict.rule}{where} {when} {verdict.since}{until}{batch}"


def _cells(verdict: Verdict, tag: str) -> tuple[str, ...]:
    """Return a row in Markdown, with few columns: TensorBoard's cards are narrow."""
    symbol = f"{SYMBOLS[verdict.severity]} {verdict.severity}"
    strong = f"**{symbol}**" if verdict.severity == "alarm" else symbol
    steps = [f"{verdict.since} to", "now" if verdict.until is None else str(verdict.until)]
    if verdict.until == verdict.since:
        steps = [str(verdict.since)]
    if verdict.batch_idx is not None:
        steps.append(f"batch {verdict.batch_idx}")
    said = [_broken(_evidence(verdict)), f"**Try:** {_broken(_advice(verdict))}", f"**See:** {tag}" if tag else ""]
    return (
        f"{strong}<br>{escaped(verdict.rule)}",
        "<br>".join(map(escaped, _name_in_lines(verdict.module or "the whole model"))),
        "<br>".join(steps),
        "<br>".join(filter(None, said)),
    )


def _broken(text: str) -> str:
    return "<br>".join(map(escaped, textwrap.wrap(text, CELL_WIDTH, break_on_hyphens=False)))


def _name_in_lines(name: str) -> list[str]:
    """Split a dotted name into lines of at most 28 characters, at the dots."""
    lines = [""]
    for word in re.findall(r"[^.]*\.?", name):
        if lines[-1] and len(lines[-1]) + len(word) > NAME_WIDTH:
            lines.append("")
        lines[-1] += word
    return lines


def _row(verdict: Verdict, tag: str) -> tuple[str, ...]:
    batch = "" if verdict.batch_idx is None else f", batch {verdict.batch_idx}"
    return (
        verdict.severity,
        verdict.rule,
        verdict.module or "the whole model",
        f"{verdict.since}{batch}",
        "now" if verdict.until is None else str(verdict.until),
        _evidence(verdict),
        _advice(verdict),
        tag,
    )


def _wrapped(text: str, start: str, indent: int, is_path: bool = False) -> list[str]:
    # A path that is broken in two cannot be copied.
    return textwrap.wrap(
        _one_line(text),
        TERMINAL_WIDTH,
        initial_indent=start,
        subsequent_indent=" " * indent,
        break_long_words=not is_path,
        break_on_hyphens=False,
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _worst_layers(run: Run, verdicts: Sequence[Verdict]) -> str:
    """Return a sentence, after a space, that names the worst layer of each chart at the latest look; "" if none."""
    found = {quantity: worst(quantity, run, verdicts) for quantity in CHARTED} if run.seen else {}
    named: dict[str, list[str]] = {}
    for quantity, layer in found.items():
        if layer is not None and not (quantity == "dead_fraction" and layer[1] == 0):
            named.setdefault(layer[0], []).append(CHARTED[quantity])
    parts = [f"{escaped(name)} ({', '.join(words)})" for name, words in named.items()]
    return f" The worst layer of each chart at the last look: {'; '.join(parts)}." if parts else ""


def _layers(run: Run) -> str:
    return _many(len(run.layers) - len(run.unseen), "layer")


def _sampled(run: Run) -> str:
    """Return a sentence, after a space, on how many layers were sampled at the latest look; "" if none were."""
    outputs = [run.now.of(layer.name, "output") for layer in run.layers] if run.looks else []
    wide = sum(output is not None and output.sample_of is not None for output in outputs)
    return (
        f" In {_many(wide, 'layer')} with more than {MOST_CHANNELS:,} units, only every k-th unit was looked at."
        if wide
        else ""
    )


def _without_output(run: Run) -> str:
    """Return a sentence, after a space, that names the layers without an output at any look, and why; "" if none."""
    causes: dict[str, list[str]] = {}
    for layer in run.unseen:
        causes.setdefault(run.why_silent.get(layer.name, ""), []).append(layer.name)
    among = [layer.name for layer in run.layers]
    parts = (f"{folded(_parents(names, among), among)}{cause and ': '}{cause}" for cause, names in causes.items())
    return f" No output at any look from {'; from '.join(parts)}." if causes else ""


def _parents(names: Sequence[str], among: Iterable[str]) -> list[str]:
    """Shorten a list of layers: a pattern stands for all layers below a module, if none of the others is below it.

    >>> _parents(["teacher.0.fc", "teacher.0.norm", "net.1.fc"], ["net.1.norm", "teacher.0.norm"])
    ['teacher.**', 'teacher.**', 'net.1.fc']
    """
    others = {f"{name}." for name in among if name not in names}
    parents = {name: next((p for p in _above(name) if not any(o.startswith(p) for o in others)), "") for name in names}
    counts = Counter(parents.values())
    return [f"{p}**" if p and counts[p] > 1 else name for name, p in parents.items()]


def _above(name: str) -> list[str]:
    """Return every module that contains this name, with a trailing dot, the outermost first."""
    parts = name.split(".")
    return [".".join(parts[:depth]) + "." for depth in range(1, len(parts))]


def _ends(run: Run) -> str:
    return "nothing" if run.first is None else f"{run.first.step} to {run.now.step}"


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _ordinal(number: int) -> str:
    last = number % 100
    suffix = "th" if 10 < last < 20 else {1: "st", 2: "nd", 3: "rd"}.get(last % 10, "th")
    return f"{number}{suffix}"
