"""The verdicts of a run in words: the headline, the lines in the terminal, and which verdicts are shown as one."""

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hookboard.base.messages import more_on
from hookboard.health.rule import Verdict
from hookboard.health.run import Run
from hookboard.measure.row import MAX_CHANNEL_ROWS
from hookboard.model.patterns import folded

CLOSING_VERDICTS_MAX = 5  # maximum number of verdicts printed to the terminal at the end of a fit
TERMINAL_WIDTH = 100  # of the terminal output, in characters


def headline(run: Run, verdicts: Sequence[Verdict]) -> str:
    """Return one sentence with the numbers of alarms and notes, layers and looks, and what makes these say little."""
    alarms = sum(verdict.severity == "alarm" for verdict in verdicts)
    counts = [(alarms, "alarm"), (len(verdicts) - alarms, "note")]
    # Of a run in which nothing was trained, that would be a claim. What was not measured (NaN) counts as moved.
    sizes = run.course("weight_rms")[[bool(layer.weights) for layer in run.layers]]
    has_moved = run.peak_rate or (np.diff(sizes) != 0).any()
    nothing = "No problems found" if has_moved else "No weight has changed"
    found = " and ".join(_many(count, noun) for count, noun in counts if count) or nothing
    times = "once" if run.seen == 1 else f"{run.seen} times"
    unseen, layers = len(run.unseen), len(run.layers)
    if unseen and unseen == layers:
        return f"None of the {_many(layers, 'layer')} produced an output, measured {times} from step {_ends(run)}."
    where = _many(layers - unseen, "layer")
    silent = f"; {_many(unseen, 'more layer')} produced no output" if unseen else ""
    if run.seen < run.window:
        found = f"{found} in {where}" if verdicts else f"Not judged yet: {where}"
        said = f"{found}, measured only {times}; most rules need {run.window} measurements{silent}."
        has_gaps = run.first is not None and run.now.step - run.first.step >= run.seen
        return f"{said} In a short run, lower every_n_steps." if has_gaps or run.seen == 1 else said
    lost = "" if run.losses.is_finite else f"; the last loss is {run.losses.recent[-1].value}"
    lost = f"; {run.losses.harm}" if run.losses.is_finite and run.losses.is_harmed and not alarms else lost
    return f"{found} in {where}, measured {times} from step {_ends(run)}{lost}{silent}."


def caveat(verdicts: Sequence[Verdict]) -> str:
    """Return that alarms should be fixed before notes; "" without both, or if all notes follow from other verdicts."""
    has_alarm = any(verdict.severity == "alarm" for verdict in verdicts)
    has_notes = any(verdict.severity == "note" and verdict.follows_from is None for verdict in verdicts)
    return "Fix alarms first; notes may be side effects or intentional." if has_alarm and has_notes else ""


def closing(run: Run, verdicts: Sequence[Verdict], places: Sequence[str] | None = ()) -> list[str]:
    """Return the lines printed at the end of a fit; `places` are those of the loggers' pages, None without a logger."""
    lines = _wrapped(f"HealthMonitor: {headline(run, verdicts)}", "", 4)
    lines += _wrapped(caveat(verdicts), "  ", 4)
    shown = folded_verdicts(verdicts, run.arrays.names)
    for verdict in shown[:CLOSING_VERDICTS_MAX]:
        lines += _wrapped(str(verdict), "  ", 4)
    if len(shown) > CLOSING_VERDICTS_MAX:
        table = "the table health/verdict of the loggers and in " if places else ""
        lines.append(f"  and {len(shown) - CLOSING_VERDICTS_MAX} more in {table}monitor.verdicts")
    lines += _wrapped(left_out(run), "  ", 4)
    lines += _wrapped(more_on(verdict.rule for verdict in shown[:CLOSING_VERDICTS_MAX]), "  ", 4)
    if places is None:
        lines.append("  There is no logger, so nothing was written; the HealthMonitor of this run has the verdicts.")
    for place in places or ():
        lines.append(f"  Open: {place}")  # in one line: a command that is broken in two cannot be copied
    return lines


def alarm_text(verdict: Verdict) -> str:
    """Return the text printed for a new verdict, with its advice, in lines of at most 100 characters."""
    return "\n".join([*_wrapped(f"HealthMonitor: {verdict}", "", 4), *_wrapped(more_on([verdict.rule]), "    ", 4)])


def ended_by(verdict: Verdict, step: int) -> str:
    """Return a sentence without its subject: "stopped training after step 12 because of spike. The loss was ..."."""
    where = f" in {verdict.module}" if verdict.module else ""
    return f"stopped training after step {step} because of {verdict.rule}{where}. {verdict.in_sentences().evidence}"


def _wrapped(text: str, start: str, indent: int) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()),
        TERMINAL_WIDTH,
        initial_indent=start,
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
    )


def coverage(run: Run, every_n_steps: int | None) -> str:
    """Return a sentence with the number of layers and of looks, and the first and the last step."""
    rhythm = f", one in {every_n_steps}" if every_n_steps and every_n_steps > 1 else ""
    layers = _many(len(run.layers) - len(run.unseen), "layer")
    return f"Measured {layers} at {_many(run.seen, 'step')} from {_ends(run)}{rhythm}."


def left_out(run: Run) -> str:
    """Return sentences on left-out units of wide layers and layers without an output, each after a space."""
    outputs = [run.now.of(layer.name, "output") for layer in run.layers] if run.looks else []
    wide = sum(output is not None and output.sample_of is not None for output in outputs)
    sampled = (
        f" In {_many(wide, 'layer')} with more than {MAX_CHANNEL_ROWS:,} units, only every k-th unit was measured."
    )
    causes: dict[str, list[str]] = {}
    for layer in run.unseen:
        causes.setdefault(run.why_unseen(layer), []).append(layer.name)
    among = run.arrays.names
    parts = (
        f"{folded(_parents(names, among), among)}{cause and ', because '}{cause}" for cause, names in causes.items()
    )
    silent = f" In the measured steps, no output was seen from {'; from '.join(parts)}."
    return (sampled if wide else "") + (silent if causes else "")


def _parents(names: Sequence[str], among: Iterable[str]) -> list[str]:
    """Replace names of layers by `module.**` if two or more, but none of the others in `among`, are inside that module.

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


FOLDED_LAYERS_MIN = 3
"""Number of layers from which verdicts of one rule with the same advice are shown as one (a choice)."""


@dataclass(frozen=True)
class Card:
    """Verdicts shown as one, as indices into all: those that are alike, worst first, and their effects by rule."""

    alike: tuple[int, ...]
    effects: tuple[tuple[int, ...], ...] = ()


def cards_of(verdicts: Sequence[Verdict]) -> list[Card]:
    """Return the cards of some verdicts, in the order of their first ones; each verdict is on one card.

    >>> several = [Verdict("note", "odd", f"net.{i}", 0, None, f"It gave {i}.", "Look.") for i in range(4)]
    >>> effect = Verdict("note", "late", "head", 0, None, "It is late.", "Wait.", follows_from=("odd", "net.2"))
    >>> cards_of([*several, effect])
    [Card(alike=(0, 1, 2, 3), effects=((4,),))]
    """
    places: dict[tuple[str, str] | None, int] = {}
    for place, verdict in enumerate(verdicts):
        places.setdefault((verdict.rule, verdict.module), place)
    following: dict[int, list[int]] = {}
    for place, verdict in enumerate(verdicts):
        root = places.get(verdict.follows_from, place)
        following.setdefault(root, [])
        if root != place:
            following[root].append(place)
    groups: dict[object, list[int]] = {}
    for root in following:
        groups.setdefault(_alike(verdicts[root], root), []).append(root)
    cards = []
    for group in groups.values():
        layers = {verdicts[root].module for root in group}
        for alike in [group] if len(layers) >= FOLDED_LAYERS_MIN else [[root] for root in group]:
            effects: dict[str, list[int]] = {}
            for place in sorted(place for root in alike for place in following[root]):
                effects.setdefault(verdicts[place].rule, []).append(place)
            cards.append(Card(tuple(alike), tuple(map(tuple, effects.values()))))
    return sorted(cards, key=lambda card: card.alike)


def folded_verdicts(verdicts: Sequence[Verdict], layers: Iterable[str]) -> list[Verdict]:
    """Return one verdict for each card: its first one, with the layers of the others and the effects in its evidence.

    >>> several = [Verdict("note", "odd", f"net.{i}", 0, None, f"It gave {i}.", "Look.") for i in range(4)]
    >>> [(one.module, one.evidence) for one in folded_verdicts(several, [])]
    [('net.0', 'It gave 0. The same rule and advice apply to 4 layers: net.* (4).')]
    """
    among = list(layers)
    return [_told(card, verdicts, among) for card in cards_of(verdicts)]


def _alike(verdict: Verdict, place: int) -> object:
    """Return what verdicts on one card share: all but layer, steps, evidence, and the numbers in their advice."""
    if not verdict.module:
        return place
    advice = re.sub(rf"(?<!\w){re.escape(verdict.module)}(?!\w)|[\d.]+", "", verdict.advice)
    return verdict.severity, verdict.rule, verdict.until is None, verdict.batch_idx, advice


def _told(card: Card, verdicts: Sequence[Verdict], among: Sequence[str]) -> Verdict:
    first = verdicts[card.alike[0]]
    said = [first.evidence]
    if len(card.alike) > 1:
        names = _layers([verdicts[place] for place in card.alike], among)
        said.append(f"The same rule and advice apply to {len(names)} layers: {folded(names, among)}")
    if card.effects:
        groups = [[verdicts[place] for place in effects] for effects in card.effects]
        said.append(f"Downstream effects: {'; '.join(_in_layers(group, among) for group in groups)}")
    return first if len(said) == 1 else replace(first, evidence=". ".join(one.rstrip(".") for one in said) + ".")


def _in_layers(group: Sequence[Verdict], among: Sequence[str]) -> str:
    names = _layers(group, among)
    return f"{group[0].rule} in {folded(names, among)}" if names else group[0].rule


def _layers(group: Sequence[Verdict], among: Sequence[str]) -> list[str]:
    names = dict.fromkeys(verdict.module for verdict in group if verdict.module)
    known = [name for name in among if name in names]
    return list(dict.fromkeys([*known, *names]))
