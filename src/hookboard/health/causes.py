"""Which finding follows from which: a verdict that another one explains is no alarm."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from hookboard.health.rule import Case
from hookboard.health.rules.shared import are_targets_unscaled
from hookboard.health.run import Run

Where = Literal["anywhere", "same", "before", "behind"]
When = Literal["by then", "not later", "earlier", "at the start", "by steps"]


@dataclass(frozen=True)
class Cause:
    """A rule whose fault brings about findings of other rules: `_is_there` says in which layers, `_is_then` when."""

    rule: str
    effects: tuple[str, ...]
    where: Where = "anywhere"
    when: When = "by then"
    # Only a proven case (`Case.is_proven`) explains anything: for rules that set `is_hard`. What is an alarm only while
    # the loss shows harm is never proven.
    only_proven: bool = False
    only_if: Callable[[Run], bool] = lambda run: True


def _is_plain(run: Run) -> bool:
    return not any(stepped.is_adaptive for look in run.looks for stepped in look.stepped.values())


def _falls_below_0(run: Run) -> bool:
    return run.losses.lowest < min(0.0, run.losses.start)


_SIGNAL = ("activation_scale", "vanishing_gradient", "dead_units", "collapsed")  # forward and backward
_FORWARD = ("activation_scale", "dead_units", "collapsed")  # of the forward pass alone
_OF_LARGE_INPUTS = ("activation_scale", "cut", "no_gradient")  # in the first layers
_OF_FAR_TARGETS = ("not_learning", "activation_scale")  # of targets far from the outputs
_STANDSTILL = ("no_gradient", "not_updated", "update_too_small")  # of weights that do not move as they should

_LATER = (*_SIGNAL, *_STANDSTILL, "symmetric_units", "not_learning", "precision", "train_eval_gap")
"""What weights may show after steps that were too large, and did not show before."""

CAUSES: tuple[Cause, ...] = (
    # By construction: where no gradient arrives, or no optimizer steps, a weight stays as it is, and so does the loss.
    Cause("not_in_optimizer", ("not_updated", "update_too_small", "not_learning")),
    Cause("adapters", (*_STANDSTILL, "symmetric_units", "not_learning")),
    Cause("experts", _STANDSTILL),
    Cause("cut", ("no_gradient", "not_updated", "not_learning")),
    Cause("no_influence", (*_STANDSTILL, "cut", "output_range", "dead_units", "not_learning")),
    # Where all gradients are exactly 0: what is cut off by `detach()` is a root, and follows from nothing.
    Cause("loss_input", ("cut",)),
    Cause("output_range", ("cut",)),
    # Outputs that are far from their targets get there in many small steps, or in large ones, and are large then.
    Cause("targets", _OF_FAR_TARGETS, only_if=are_targets_unscaled),
    Cause(
        "targets",
        ("update_too_large", "nonfinite", "spike"),
        only_if=lambda run: are_targets_unscaled(run) and _is_plain(run),
    ),
    Cause("dead_units", (*_STANDSTILL, "vanishing_gradient"), "before", only_proven=True),
    # What a layer of 0 feeds is the same for all samples.
    Cause("dead_units", ("collapsed",), "behind", only_proven=True),
    Cause("dead_units", ("activation_scale", "collapsed", "symmetric_units", "not_updated"), "same"),
    Cause("vanishing_gradient", ("no_gradient", "not_updated"), only_proven=True),
    Cause("no_gradient", ("not_updated", "update_too_small", "vanishing_gradient"), "before"),
    Cause("not_updated", ("update_too_small",), "same"),
    Cause("precision", _STANDSTILL),
    # Seen in the loss: it falls without a bound, and takes everything along.
    Cause("unbounded_loss", (*_LATER, "spike", "update_too_large", "nonfinite"), only_if=_falls_below_0),
    Cause(
        "not_learning",
        (*_SIGNAL, *_STANDSTILL, "update_too_large", "nonfinite", "spike"),
        only_if=lambda run: run.losses.is_boundless,
    ),
    # The gradient is what an optimizer that is not adaptive steps by. With Adam a step is as large as the rate.
    Cause("input_scale", ("update_too_large",), when="at the start", only_if=_is_plain),
    # What the first layers give grows with the input.
    Cause("input_scale", (*_OF_LARGE_INPUTS, "not_learning"), when="at the start"),
    Cause("activation_scale", ("update_too_large",), when="at the start", only_if=_is_plain),
    # Seen in time: it was not there at the first look, and began after this.
    Cause("stale_gradients", (*_LATER, "spike", "update_too_large", "nonfinite"), when="by steps"),
    Cause("update_too_large", ("spike",), when="not later"),
    Cause("update_too_large", _LATER, when="by steps"),
    Cause("update_too_large", ("nonfinite",), when="earlier", only_if=lambda run: run.first_move > 1),
    Cause("spike", (*_LATER, "update_too_large"), when="by steps"),
    Cause("nonfinite", (*_LATER, "spike", "update_too_large"), when="not later"),
    *(
        Cause(rule, ("nonfinite",), when="earlier", only_if=lambda run: run.has_blown_up)
        for rule in ("update_too_large", "activation_scale", "spike")
    ),
)
"""From what explains most to what explains least. Each is so by construction, or seen in this run, as it says."""

ORDER = tuple(
    """
    not_in_optimizer adapters experts unbounded_loss future_leak eval_mode
    dropout stale_gradients cut loss_shape no_influence loss_input batch_mixing
    output_range update_too_large targets input_scale symmetric_units dead_units
    activation_scale spike nonfinite precision vanishing_gradient no_gradient not_updated
    update_too_small collapsed train_eval_gap
    """.split()  # noqa: SIM905  # a list would have a line for each
)
"""The order in which alarms that do not explain each other are reported; rules that are not listed come last."""

OF_THE_WHOLE = frozenset({"not_learning", "overfitting"})
"""Rules that say that a training fails as a whole. Their notes come before other notes."""


def explained(cases: Sequence[Case], run: Run) -> dict[Case, Case]:
    """Map each case that follows from another one to the case that explains it; the others have no entry."""
    found: dict[Case, Case] = {}
    if not run.looks:
        return found
    by_rule: dict[str, list[Case]] = {}
    for case in cases:
        by_rule.setdefault(case.rule, []).append(case)
    for cause in CAUSES:
        if cause.rule not in by_rule or not cause.only_if(run):
            continue
        ones = [one for one in by_rule[cause.rule] if not cause.only_proven or one.is_proven]
        for other in (case for effect in cause.effects for case in by_rule.get(effect, ())):
            if other in found or other.finding.is_root:
                continue
            # Of two faults each has its own effects: the nearest one is the cause.
            near = [one for one in ones if _follows(run, cause, one, other)]
            for one in sorted(near, key=partial(_distance, run, other)):
                root = _root_of(one, found)  # what follows from an effect follows from its cause
                if other != root:
                    found[other] = root
                    break
    return {effect: _root_of(effect, found) for effect in found}


def _distance(run: Run, effect: Case, cause: Case) -> tuple[int, bool]:
    """Return how many layers lie between two cases, and whether it is the less likely side; 0 for a whole model."""
    if not effect.module or not cause.module:
        return 0, False
    # What a layer gives depends on those before it, and its gradient on those after it.
    behind = run.place(cause.module) - run.place(effect.module)
    return abs(behind), (behind > 0) is (effect.rule in _FORWARD)


def _root_of(case: Case, found: Mapping[Case, Case]) -> Case:
    while case in found:
        case = found[case]
    return case


def _follows(run: Run, cause: Cause, one: Case, other: Case) -> bool:
    # A note is not known to do harm: unless it is a root, it explains at most another note on that very layer.
    is_on_that_layer = other.severity == "note" and one.module and one.module == other.module
    if one.severity == "note" and not (one.finding.is_root or is_on_that_layer):
        return False
    if one.rule == "update_too_large" and not _has_moved_far(run, other.module):
        return False
    return _is_there(run, one, other, cause.where) and _is_then(run, one, other, cause.when)


def _has_moved_far(run: Run, module: str) -> bool:
    moved = run.course("update_ratio")[run.place(module) : run.place(module) + 1]
    return not np.isfinite(moved).any() or bool((moved > FAR_SHARE).any())


FAR_SHARE = 0.1
"""Share of the weights from which a step is large (DeepDiagnosis, TheDeepChecker)."""


def _is_there(run: Run, one: Case, other: Case, where: Where) -> bool:
    if where == "anywhere" or not one.module or not other.module:
        return True
    at, place = run.place(one.module), run.place(other.module)
    return {"same": place == at, "before": place <= at, "behind": place >= at}[where]


def _is_then(run: Run, one: Case, other: Case, when: When) -> bool:
    if when == "earlier":
        return one.since < other.since
    if when == "not later":
        return one.since <= other.since
    start = 0 if run.first is None else run.first.step
    if when == "at the start" and one.since > start:
        return False
    if when == "by steps" and other.since <= start:
        return False
    steps = run.recent_steps[-run.window - 1 :]  # at most a window of looks later
    return one.since <= other.since + steps[-1] - steps[0]
