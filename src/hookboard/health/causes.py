"""Which finding follows from which: a verdict that another one explains is no alarm.

What explains most comes first: faults of the data or of a step cause findings in many layers, a dead layer causes
findings in all layers it feeds, and a loss that does not fall is the last thing to report.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from hookboard.health.rule import Verdict
from hookboard.health.run import Run

Where = Literal["anywhere", "same", "before"]
When = Literal["by then", "not later", "earlier", "at the start", "by steps"]


@dataclass(frozen=True)
class Cause:
    """A rule whose fault brings about the findings of other rules.

    Args:
        where: the layers whose findings it explains, relative to the layer of the cause: the `same` one; with `before`
            also all that run before it; or `anywhere`. Where the cause or the finding is of the whole model, any of
            the three holds.
        when: when the cause must have begun. `by then`: at most one window of looks later than the effect. `not later`:
            at the same step or earlier. `earlier`: at an earlier step. `at the start`: `by then`, and no later than
            the first look. `by steps`: `by then`, and the effect began after the first look.
        is_hard: True if only a hard alarm of the cause explains anything, see `Case.is_hard` in `judge.py`.
        is_soft: True if it explains only alarms that are not hard, and no notes.
    """

    rule: str
    effects: tuple[str, ...]
    where: Where = "anywhere"
    when: When = "by then"
    is_hard: bool = False
    is_soft: bool = False
    only_if: Callable[[Run], bool] = lambda run: True


def _is_adaptive(run: Run) -> bool:
    """Return True if any optimizer seen at the kept looks is adaptive, such as Adam, see `Stepped.is_adaptive`."""
    return any(stepped.is_adaptive for look in run.looks for stepped in look.stepped.values())


_SIGNAL = ("activation_scale", "exploding_gradient", "vanishing_gradient", "saturated", "dead_units", "collapsed")
"""Findings of the signal, forward and backward."""

_FORWARD = ("activation_scale", "saturated", "dead_units", "collapsed")
"""Findings of the forward pass alone."""

_OF_BATCH = ("input_scale",)
"""Rules whose fault is in the batch, which other layers may take too."""

_STANDSTILL = ("no_gradient", "not_updated", "update_too_small")
"""Findings of weights that do not move as they should."""

_LAST = ("not_learning", "precision", "train_eval_gap")
"""Rules whose findings follow from nearly everything."""

_OF_LOSS = (
    "vanishing_gradient",
    "exploding_gradient",
    "saturated",
    "collapsed",
    *_STANDSTILL,
    "spike",
    *_LAST,
)
"""Rules whose findings follow from a faulty loss."""

CAUSES: tuple[Cause, ...] = (
    # DDP averages nothing that it sends together with a gradient that does not come.
    Cause("unused_parameters", ("ranks_differ", *_STANDSTILL)),
    Cause(
        "not_learning",
        (*_SIGNAL, *_STANDSTILL, "update_too_large", "nonfinite", "spike"),
        only_if=lambda run: run.losses.is_boundless,
    ),
    Cause("masked_row", ("nonfinite", *_LAST)),
    Cause("not_in_optimizer", ("not_updated", "update_too_small", *_LAST)),
    Cause("adapters", ("symmetric_units",), "same"),
    Cause("adapters", (*_STANDSTILL, *_LAST)),
    Cause("experts", _STANDSTILL),
    Cause("schedule", ("not_updated", "update_too_small", *_LAST)),
    Cause("optimizer_settings", ("nonfinite", "precision", *_LAST)),
    Cause("unbounded_loss", ("clipping", *_OF_LOSS, *_SIGNAL, "update_too_large", "nonfinite", "dead_units")),
    Cause("loss_scale", (*_OF_LOSS, "cut")),
    Cause("future_leak", ("train_eval_gap",)),
    Cause("eval_mode", (*_SIGNAL, *_LAST, "update_too_large", "spike")),
    Cause("dropout", ("update_too_large", "spike", *_SIGNAL, *_LAST)),
    Cause("padding_mask", _OF_LOSS),
    Cause("cleared_gradients", (*_STANDSTILL, "vanishing_gradient", "cut", *_LAST)),
    Cause("wrong_optimizer", ("no_gradient", "not_updated", "vanishing_gradient", *_LAST)),
    Cause("stale_gradients", ("clipping", *_OF_LOSS, *_SIGNAL, "update_too_large", "nonfinite", "symmetric_units")),
    Cause("cut", ("no_gradient", "not_updated", *_LAST)),
    Cause("loss_shape", (*_OF_LOSS, "cut")),
    Cause("no_influence", (*_OF_LOSS, "dead_units", "output_range", "cut")),
    Cause("loss_input", (*_OF_LOSS, "dead_units", "cut")),
    Cause("batch_mixing", _OF_LOSS),
    Cause("output_range", (*_OF_LOSS, "dead_units", "cut")),
    Cause("targets", (*_OF_LOSS, "update_too_large", "nonfinite", "cut")),
    Cause(
        "input_scale",
        (
            *("clipping", *_SIGNAL, "initial_loss", "symmetric_units", "cut"),
            *("update_too_large", "update_too_small", "spike", *_LAST),
        ),
    ),
    Cause("input_scale", ("nonfinite",), when="earlier"),
    Cause("initial_loss", ("update_too_large", "spike", *_LAST)),
    Cause("weight_decay", (*_SIGNAL, *_STANDSTILL, "update_too_large", *_LAST)),
    Cause("clipping", ("update_too_small", "not_updated", *_LAST)),
    Cause("symmetric_units", (*_SIGNAL, *_STANDSTILL, "update_too_large", *_LAST), when="at the start"),
    Cause(
        "dead_units", ("activation_scale", "collapsed", "vanishing_gradient", "symmetric_units"), when="at the start"
    ),
    Cause("dead_units", (*_STANDSTILL, "saturated", "update_too_large", "cut"), when="at the start", is_hard=True),
    # With Adam a step is as large as the learning rate, whatever the gradient.
    Cause("update_too_large", (*_SIGNAL, *_STANDSTILL, "symmetric_units", *_LAST), is_soft=True, only_if=_is_adaptive),
    Cause("activation_scale", ("update_too_large",), when="at the start", only_if=lambda run: not _is_adaptive(run)),
    Cause("activation_scale", ("exploding_gradient", "initial_loss", "spike", "cut", *_LAST), when="at the start"),
    Cause("activation_scale", ("saturated", "dead_units", "vanishing_gradient", "collapsed"), when="at the start"),
    Cause("dead_units", ("activation_scale", "collapsed", "vanishing_gradient", "symmetric_units"), "anywhere"),
    Cause(
        "exploding_gradient",
        ("update_too_large", "spike"),
        when="at the start",
        only_if=lambda run: not _is_adaptive(run),
    ),
    Cause("update_too_large", ("spike",), when="not later"),
    Cause("update_too_large", (*_SIGNAL, *_STANDSTILL, "symmetric_units", *_LAST), when="by steps"),
    Cause("update_too_large", ("nonfinite",), when="earlier", only_if=lambda run: run.has_blown_up),
    Cause("spike", (*_SIGNAL, *_STANDSTILL, "update_too_large", "symmetric_units", *_LAST), when="by steps"),
    Cause("exploding_gradient", ("spike", "dead_units", "saturated", "activation_scale"), when="by steps"),
    Cause("exploding_gradient", ("nonfinite",), when="earlier", only_if=lambda run: run.has_blown_up),
    Cause("activation_scale", ("nonfinite",), when="earlier", only_if=lambda run: run.has_blown_up),
    Cause("spike", ("nonfinite",), when="earlier"),
    Cause("nonfinite", ("spike", "update_too_large"), when="not later"),
    Cause("nonfinite", (*_SIGNAL, *_STANDSTILL, "symmetric_units", "input_scale", *_LAST)),
    Cause("precision", (*_STANDSTILL, *_SIGNAL, "not_learning")),
    Cause("dead_units", (*_STANDSTILL, "saturated"), is_hard=True),
    # A gradient that has all but vanished moves no weight: the step is lost in rounding. In the end it is 0.
    Cause("vanishing_gradient", ("no_gradient", "not_updated"), is_hard=True),
    Cause("no_gradient", ("not_updated", "update_too_small", "vanishing_gradient"), "before"),
    Cause("no_gradient", _LAST),
    Cause("not_updated", ("update_too_small", "activation_scale", "vanishing_gradient", "collapsed", *_LAST), "same"),
    # A model that does not move keeps its loss, which makes alarms of what would be notes.
    Cause("not_updated", (*_SIGNAL, "symmetric_units", "update_too_small", *_LAST), is_soft=True),
    Cause("update_too_small", (*_SIGNAL, "symmetric_units", *_LAST), is_soft=True, only_if=_is_adaptive),
    Cause("update_too_small", ("dead_units", *_LAST), is_soft=True),
    Cause("dead_units", _LAST),
    Cause("saturated", ("vanishing_gradient", "activation_scale", "collapsed", "update_too_small", "cut", *_LAST)),
    Cause("activation_scale", ("vanishing_gradient", "exploding_gradient", "collapsed", "update_too_small", *_LAST)),
    Cause("vanishing_gradient", ("update_too_small", "no_gradient", "collapsed", *_LAST)),
    Cause("exploding_gradient", ("update_too_large", *_LAST)),
    Cause("collapsed", ("update_too_small", *_LAST)),
    Cause("symmetric_units", _LAST),
    Cause("update_too_small", _LAST),
    Cause("spike", _LAST),
    Cause("train_eval_gap", ("not_learning",)),
)
"""From what explains most to what explains least."""

OF_THE_WHOLE = frozenset({"not_learning", "overfitting"})
"""Rules that say that a training fails as a whole. Their notes come before other notes."""

# A loss that does not fall is the last thing to report, though as one without a bound it is among the causes.
ORDER = tuple(dict.fromkeys(cause.rule for cause in CAUSES if cause.rule != "not_learning"))
"""The order in which alarms that do not explain each other are reported; rules that are not listed come last."""


def explained(
    verdicts: Sequence[Verdict], run: Run, hard: Collection[Verdict] = (), roots: Collection[Verdict] = ()
) -> dict[Verdict, Verdict]:
    """Map each verdict that follows from another one to the verdict that explains it; the others have no entry.

    What follows from an effect that is already explained is mapped to the cause of that effect. An alarm is explained
    by an alarm only. A note explains only notes on the same layer. A verdict is in `hard` if its case is
    (`Case.is_hard`), and in `roots` if it must not be explained (`Finding.is_root`).
    """
    found: dict[Verdict, Verdict] = {}
    if not (verdicts and run.looks):
        return found
    by_rule: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        by_rule.setdefault(verdict.rule, []).append(verdict)
    for cause in CAUSES:
        if cause.rule not in by_rule or not cause.only_if(run):
            continue
        ones = [one for one in by_rule[cause.rule] if not cause.is_hard or one in hard]
        for other in (verdict for effect in cause.effects for verdict in by_rule.get(effect, ())):
            if other in found or other in roots or (cause.is_soft and (other in hard or other.severity == "note")):
                continue
            # Of two faults each has its own effects: the nearest one is the cause.
            for one in sorted(
                (one for one in ones if _follows(run, cause, one, other)), key=partial(_distance, run, other)
            ):
                root = _root_of(one, found)  # what follows from an effect follows from its cause
                if other != root:
                    found[other] = root
                    break
    return {effect: _root_of(effect, found) for effect in found}


def _distance(run: Run, effect: Verdict, cause: Verdict) -> tuple[int, bool]:
    """Return how many layers lie between two verdicts, and whether it is the less likely side; 0 for a whole model.

    What a layer gives depends on those before it, and its gradient on those after it.
    """
    if not effect.module or not cause.module:
        return 0, False
    behind = run.place(cause.module) - run.place(effect.module)
    return abs(behind), (behind > 0) is (effect.rule in _FORWARD)


def _root_of(verdict: Verdict, found: Mapping[Verdict, Verdict]) -> Verdict:
    while verdict in found:
        verdict = found[verdict]
    return verdict


def _follows(run: Run, cause: Cause, one: Verdict, other: Verdict) -> bool:
    # Of a note nobody knows that it harms; what it says of a layer explains another note on that very layer at most.
    if one.severity == "note" and (other.severity == "alarm" or not one.module or one.module != other.module):
        return False
    return _is_there(run, one, other, cause.where) and _is_then(run, one, other, cause.when)


def _is_there(run: Run, one: Verdict, other: Verdict, where: Where) -> bool:
    if not one.module or not other.module:
        return True
    if where == "anywhere":
        # Before the first step, what a layer gives depends on nothing but the layers before it, and on the batch.
        is_given = one.rule not in _OF_BATCH and other.rule in _FORWARD and other.since <= _start(run)
        return not (is_given and run.facts.flow.are_apart(one.module, other.module))
    at, place = run.place(one.module), run.place(other.module)
    return place == at if where == "same" else place <= at


def _is_then(run: Run, one: Verdict, other: Verdict, when: When) -> bool:
    start = _start(run)
    if when in ("earlier", "not later"):
        return one.since < other.since or (when == "not later" and one.since == other.since)
    if when == "at the start" and one.since > start:
        return False
    if when == "by steps" and other.since <= start:
        return False
    return one.since <= other.since + _slack(run)


def _start(run: Run) -> int:
    return 0 if run.first is None else run.first.step


def _slack(run: Run) -> int:
    """Return the number of optimizer steps that the latest window of looks spans; 0 before the second look."""
    steps = list(run.table.recent_steps)[-run.window - 1 :]
    return steps[-1] - steps[0] if steps else 0
