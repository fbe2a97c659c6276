"""What reaches the weights, and whether they move: `no_gradient` and `not_updated`."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from hookboard.base.messages import listed
from hookboard.health.look import Look
from hookboard.health.robust import median_of
from hookboard.health.rule import Finding, Rule, Severity
from hookboard.health.rules.shared import (
    UPDATE_RATIO_SMALL,
    WHOLE_MODEL_SHARE,
    harm_of,
    has_gradient,
    has_moved,
    is_at_end_of_schedule,
    is_done,
    main_weights,
    reaches,
    severity_of,
    stepped_weights,
)
from hookboard.health.run import Run
from hookboard.model.layers import Layer

BACKBONE_SHARE = 0.5
"""First layers in no optimizer are taken for a frozen backbone, a note, from this share of all layers (a choice)."""

WINDOWS_BEFORE_FORGOTTEN = 4
"""Number of windows after which an optimizer that has never stepped is taken for forgotten (a choice)."""

NO_RATE = "the learning rate is 0"


def no_gradient(run: Run) -> Iterator[Finding]:
    """Report weights that an optimizer steps but that no gradient reaches, or only zeros."""
    look = run.now
    gradients = run.latest.rows["parameter_grad"]
    unreached = itertools.compress(run.arrays.weights, ~gradients.reaches)
    if look.overflowed or look.stepped.keys().isdisjoint(unreached):
        return
    # Layers before one that starts at 0 get only zeros in the first step of a warm-up.
    if not any(stepped.rate for stepped in look.stepped.values()):
        return
    idle = _idle(run, look)
    is_all = len(idle) > WHOLE_MODEL_SHARE * sum(bool(stepped_weights(look, layer)) for layer in run.layers)
    chains, others = _chains_without_gradient(run, look, [] if is_all else idle)
    if idle and not (is_all and chains):
        yield _unused(run, look, idle, "alarm" if is_all else "note")
    for chain in chains:
        yield _cut(run, look, chain, others)


def _idle(run: Run, look: Look) -> list[Layer]:
    """Return layers whose weights had no effect on the first loss and no gradient since, as of an unused head."""
    had = np.any(run.recent("weight_gradient_rms") > 0, axis=1)
    stepped = [(layer, set(weights)) for layer in run.layers if (weights := stepped_weights(look, layer))]
    return [layer for layer, weights in stepped if weights <= run.facts.idle and not had[run.place(layer.name)]]


def _unused(run: Run, look: Look, idle: Sequence[Layer], severity: Severity) -> Finding:
    names = [name for layer in idle for name in stepped_weights(look, layer)]
    count = sum(bool(stepped_weights(look, layer)) for layer in run.layers)
    through = ", other than through its targets" if run.facts.has_moving_target else ""
    evidence = (
        f"in the first step, the weights of {len(idle)} of the {count} layers in an optimizer had no effect on the loss"
        f"{through}: {listed(names, 3)}"
    )
    advice = "check whether they should have been used; if not, nothing needs to be done"
    module, is_hard = idle[0].name if len(idle) == 1 else "", severity == "alarm"
    return Finding(module, evidence, advice, severity, float(len(idle)), is_hard=is_hard)


def _chains_without_gradient(run: Run, look: Look, idle: Sequence[Layer]) -> tuple[list[list[Layer]], list[Layer]]:
    """Return the layers that ran and get no gradient, in lists of consecutive ones, and the layers that get one."""
    chains: list[list[Layer]] = []
    others: list[Layer] = []
    is_open = False
    for layer in run.layers:
        weights = stepped_weights(look, layer)
        if not weights or layer in idle:
            continue
        # The gradient of what a parametrization computes is unknown.
        is_reached = any(has_gradient(look, name) for name in weights)
        if is_reached or layer.is_computed or _comes_back(run, layer) or _is_trained_between(run, look, weights):
            others.append(layer)
            is_open = False
        elif look.of(layer.name, "output") is not None:
            if not is_open:
                chains.append([])
            chains[-1].append(layer)
            is_open = True
    return chains, others


def _is_trained_between(run: Run, look: Look, weights: Iterable[str]) -> bool:
    """Return True if weights without any gradient now have changed: by a step in between, as where tasks take turns."""
    # Without a gradient no optimizer changes a weight, not even by decay. A gradient of zeros proves nothing.
    return any(look.of(name, "parameter_grad") is None and has_moved(run, name, unknown=False) for name in weights)


def _comes_back(run: Run, layer: Layer) -> bool:
    """Return True if a gradient reached the layer earlier and may do so again, as with stochastic depth."""
    has = run.recent("weight_gradient_rms")[run.place(layer.name)] > 0
    if not has.any():
        return False
    reached = np.flatnonzero(has)
    longest = int(np.diff(reached).max(initial=1)) - 1
    return len(has) - 1 - int(reached[-1]) <= max(2 * run.window, 2 * longest)


def _gone_since(run: Run, layer: Layer) -> int | None:
    reached = np.flatnonzero(run.recent("weight_gradient_rms")[run.place(layer.name)] > 0)
    return run.recent_steps[int(reached[-1]) + 1] if len(reached) else None


def _cut(run: Run, look: Look, chain: list[Layer], others: list[Layer]) -> Finding:
    last = _last_without_gradient(run, look, chain[-1])  # there the gradient is lost first
    usual = median_of(run.recent("weight_gradient_rms")[[run.place(layer.name) for layer in others], -1].tolist())
    zeros = all(look.of(name, "parameter_grad") is not None for layer in chain for name in layer.weights)
    what = "only zero gradients reach" if zeros else "no gradient reaches"
    where = chain[0].name if len(chain) == 1 else _from_to(chain)
    elsewhere = f"elsewhere the gradient RMS is {usual:.2g}" if others else "no other layer gets a nonzero gradient"
    since = _gone_since(run, chain[-1])
    # A margin that all samples keep leaves no gradient in the end.
    severity: Severity = "alarm" if others or run.losses.is_harmed or since is None else "note"
    if zeros and since is None and reaches(look.of(chain[-1].name, "grad_output")):
        return Finding(
            chain[-1].name,
            f"only zero gradients reach the weights of {where}, although its output gets a gradient that is not 0, so "
            f"its input is always 0{harm_of(run)}",
            "check what it is given",
            severity_of(run),
            float(len(chain)),
        )
    # Without a graph there is no gradient at all; zeros are the derivative of something.
    why = "something that multiplies by 0, such as a dead or saturated activation or a softmax over one value"
    advice = f"downstream of {last}, look for {why if zeros else 'detach(), no_grad() or an unused output'}"
    names = [name for layer in chain for name in layer.weights]
    said = [found for found in run.facts.findings if found.rule == "cut"]
    cutting = (each for each in said if " cuts " in each.evidence)
    cut = next((each for each in cutting if any(name in each.evidence for name in names)), None)
    if cut is not None and not zeros:
        advice = f"{cut.advice} ({cut.evidence.partition(' cuts ')[0]} cuts the gradient)"
    # A later dead layer passes zeros. Nothing is passed by a cut, or kept by a step that comes too late.
    has_cause = not others and any(found.rule == "cut" and found.severity == "alarm" for found in run.facts.findings)
    return Finding(
        last,
        f"{what} the weights of {where}; {elsewhere}",
        advice,
        severity,
        float(len(chain)),
        since,
        is_root=not zeros and not has_cause,
        is_hard=severity == "alarm",
    )


def _last_without_gradient(run: Run, look: Look, layer: Layer) -> str:
    """Return the name of the last layer, from this one up to the next with weights, whose output gets no gradient."""
    if reaches(look.of(layer.name, "grad_output")):
        return layer.name
    name = layer.name
    for other in run.layers[run.place(layer.name) + 1 :]:
        if look.of(other.name, "output") is None:
            continue
        if other.weights or reaches(look.of(other.name, "grad_output")):
            break
        name = other.name
    return name


def not_updated(run: Run) -> Iterator[Finding]:
    """Report weights that a gradient reaches and that do not change: in no optimizer, rate 0, or lost in rounding."""
    look = run.now
    if look.overflowed:
        return
    if run.peak_rate and not any(run.peak_rate.values()):
        yield from _without_any_rate(run)
        return
    since = _at_rest_since(run)
    reason = None if since is None else _why_at_rest(run)
    if since is not None and reason is not None:
        why, advice = reason
        evidence = (
            f"no weight of the model has changed since step {since}: {why} ({run.now.step - since + 1:,} of "
            f"{run.now.step - run.course_steps[0] + 1:,} steps)"
        )
        yield Finding(
            "",
            evidence,
            f"{advice}, or end the training there",
            "alarm",
            since=since,
            is_root=True,
            is_hard=True,
            is_lasting=True,
        )
        return
    yield from _in_no_optimizer(run, look)
    still = {*run.arrays.owner[run.latest.rows["parameter_update"].rms == 0].tolist()}
    if not still:
        return
    stepped = [layer for layer in run.layers if stepped_weights(look, layer)]
    may_be_still = (layer for layer in stepped if run.place(layer.name) in still)
    why_still = {layer.name: why for layer in may_be_still if (why := _why_still(run, look, layer))}
    advice = "check the learning rate of its parameter group, and the dtype of its weights"
    if len(stepped) > 2 and len(why_still) > WHOLE_MODEL_SHARE * len(stepped):
        evidence = (
            f"{len(why_still)} layers get gradients, but their weights do not change: {next(iter(why_still.values()))}"
        )
        yield Finding("", evidence, advice, "alarm", is_hard=True)
        return
    # Where all others hardly move either, the steps of the whole model are too small.
    moves = run.recent("update_ratio")[:, -1]
    is_slow = median_of(moves[(moves > 0) & (moves < np.inf)].tolist()) < UPDATE_RATIO_SMALL
    for chain in _neighbours(stepped, why_still):
        why = why_still[chain[0].name]
        if is_slow and not why.startswith(NO_RATE):
            continue
        whose = "its weights" if len(chain) == 1 else f"the weights of {_from_to(chain)}"
        evidence = f"{whose} get a gradient but do not change: {why} ({len(why_still)} of {len(stepped)} layers)"
        is_root = why.startswith(NO_RATE)
        # What has moved, and by which the loss is lower, may have come to rest.
        moved = run.course("update_ratio")[[run.place(layer.name) for layer in chain]] > 0
        rests = not is_root and run.losses.is_learning and bool(moved.any(axis=1).all())
        severity: Severity = "note" if rests else "alarm"
        # A rate of 0 may be meant, as of a group that begins later.
        is_hard = severity == "alarm" and not is_root
        yield Finding(chain[0].name, evidence, advice, severity, float(len(chain)), is_root=is_root, is_hard=is_hard)


STOPPED_SHARE = 0.25
"""From this share of the steps without a move training has stopped (a choice): schedules reach 0 in the last ones."""

STOPPED_RATE = 1e-6
"""A learning rate of at most this share of its peak counts as none (a choice)."""


def _at_rest_since(run: Run) -> int | None:
    """Return the first look's step from which no weight of the model is different; None if one moved lately."""
    if not run.losses.is_finite:  # a loop may step no more
        return None
    trained = [run.place(layer.name) for layer in run.layers if run.peak_rate.keys() & set(layer.weights)]
    sizes, steps = run.course("weight_rms")[trained], [*run.course_steps]
    if steps[-1] != run.now.step:
        sizes = np.hstack([sizes, run.recent("weight_rms")[trained, -1:]])
        steps.append(run.now.step)
    changes = np.diff(sizes[np.isfinite(sizes[:, -1])])  # what is NaN stays NaN
    moved = (~np.isnan(changes) & (changes != 0)).any(axis=0)
    is_moving = (run.recent("update_ratio")[trained, -run.window :] > 0).any()
    # What has not moved yet may wait, as in a warm-up, and a loss of 0 may rest.
    if is_moving or not moved.any() or moved[-run.window :].any() or run.losses.is_at_zero:
        return None
    since = steps[int(np.flatnonzero(moved)[-1]) + 1]
    return since if run.now.step - since >= STOPPED_SHARE * (run.now.step - steps[0]) else None


def _why_at_rest(run: Run) -> tuple[str, str] | None:
    """Return why no weight moves, and what to try; None if that is not known, as where LBFGS has converged."""
    stepped, peaks = run.now.stepped, run.peak_rate
    if run.now.frozen >= peaks.keys():
        return "none of them requires a gradient", "set requires_grad to True"
    if not stepped:
        return "no optimizer steps them", "check that step() is still called"
    rate = max(each.rate for each in stepped.values())
    if rate <= STOPPED_RATE * max(peaks.values()):
        return f"the learning rate is {rate:.2g}", "check how many steps the schedule is given"
    if not any(has_gradient(run.now, name) for name in stepped):
        return "no gradient reaches them", "check what the loss still depends on"
    return None


def _neighbours(layers: Iterable[Layer], why: Mapping[str, str]) -> Iterator[list[Layer]]:
    for said, chain in itertools.groupby(layers, lambda layer: why.get(layer.name, "")):
        if said:
            yield list(chain)


def _from_to(chain: Sequence[Layer]) -> str:
    return f"{len(chain)} layers ({chain[0].name} to {chain[-1].name})"


def _without_any_rate(run: Run) -> Iterator[Finding]:
    # A warm-up starts at 0, and may stay there for a while.
    if run.seen > 2 * run.window and run.losses.is_stuck:
        steps = f"step {run.first.step if run.first else 0} to {run.now.step}"
        evidence = f"the learning rate of every weight was 0 at every measurement from {steps}; {run.losses.harm}"
        yield Finding("", evidence, "check the learning rate and its schedule", "alarm", is_root=True)


def _in_no_optimizer(run: Run, look: Look) -> Iterator[Finding]:
    """Report layers that a gradient reaches, that no optimizer has ever stepped, and whose weights have not changed."""
    if run.peak_rate.keys() | look.frozen >= set(run.arrays.weights):
        return
    trained = [layer for layer in run.layers if _trainable_now(look, layer) and _is_reached(look, layer)]
    left = [layer for layer in trained if _is_left_out(run, look, layer)]
    # That weights do not move is seen at the second look, from where they were at the first.
    since = run.first.step if run.first is not None and run.seen == 2 else None
    if len(left) > 1 and len(left) == len(trained):
        evidence = f"all {len(left)} layers get gradients, but no optimizer updates any of them"
        advice = "check that the optimizer was given the parameters of this model, not of a copy"
        is_read = any(found.rule == "not_in_optimizer" and found.severity == "alarm" for found in run.facts.findings)
        yield Finding("", evidence, advice, "alarm", float(len(left)), since=since, is_root=not is_read)
        return
    front = sum(1 for a, b in zip(trained, left, strict=False) if a is b)
    frozen = frozenset[str]() if run.first is None else run.first.frozen
    thawed = {layer.name for layer in left if frozen >= set(main_weights(layer, _trainable_now(look, layer)))}
    is_backbone = front == len(left) and front >= BACKBONE_SHARE * len(trained) and not thawed
    is_copy = _is_copy(run, left, trained)
    for i, layer in enumerate(left):
        if i and trained.index(left[i - 1]) + 1 == trained.index(layer):
            continue  # the one before it is named
        several = f"; the same is true of {len(left) - 1} other layer{'s' * (len(left) > 2)}" if len(left) > 1 else ""
        # As that of a generator. It may wait for others for a while.
        is_held = _trainable_now(look, layer) <= run.facts.held
        is_forgotten = is_held and run.seen > WINDOWS_BEFORE_FORGOTTEN * run.window
        where = (
            "the optimizer that holds its weights has never stepped" if is_held else "its weights are in no optimizer"
        )
        where += ", and were frozen at first" if layer.name in thawed else ""
        evidence = (
            f"its output gets a gradient, but {where}{several}; {len(trained) - len(left)} of "
            f"{len(trained)} layers {'is' if len(trained) - len(left) == 1 else 'are'} "
            + ("stepped" if is_held else "in an optimizer")
        )
        advice = "pass its parameters to the optimizer, or set requires_grad to False"
        advice = f"{advice}; ignore this if it is a target network" if is_copy else advice
        advice = "call step() on that optimizer too" if is_held else advice
        may_be_meant = is_held or ((is_backbone or is_copy) and not run.losses.is_harmed)
        severity: Severity = "alarm" if is_forgotten or not may_be_meant else "note"
        is_hard = not (is_backbone or is_copy or layer.name in thawed)
        yield Finding(layer.name, evidence, advice, severity, since=since, is_root=True, is_hard=is_hard)


def _is_copy(run: Run, left: Sequence[Layer], trained: Sequence[Layer]) -> bool:
    """Return True if layers are networks in the model that began as copies of trained ones, as target networks."""
    parts = {layer.name.partition(".")[0] for layer in left}
    inside = [layer for layer in trained if layer.name.partition(".")[0] in parts]
    # A second tower that was forgotten has the same shapes, and other numbers.
    twins = {(layer.name.partition(".")[2], _began(run, layer)) for layer in trained if layer not in inside}
    return len(inside) == len(left) and all(
        "." in one.name and (one.name.partition(".")[2], _began(run, one)) in twins for one in left
    )


def _began(run: Run, layer: Layer) -> tuple[float, ...]:
    found = (run.first and run.first.of(name, "parameter_before") for name in layer.weights)
    return tuple(float(f"{reading.moments.rms:.4g}") if reading else math.nan for reading in found)


def _trainable_now(look: Look, layer: Layer) -> set[str]:
    return set(layer.weights) - look.frozen


def _is_left_out(run: Run, look: Look, layer: Layer) -> bool:
    names = main_weights(layer, _trainable_now(look, layer))
    return any(name not in run.peak_rate and not has_moved(run, name) for name in names)


def _is_reached(look: Look, layer: Layer) -> bool:
    """Return True if a gradient reaches the layer's output or a weight (measured only if an optimizer holds it)."""
    return reaches(look.of(layer.name, "grad_output")) or any(has_gradient(look, name) for name in layer.weights)


def _why_still(run: Run, look: Look, layer: Layer) -> str:
    """Return why a layer's weights do not change though a gradient reaches them, as a clause; "" for a good reason."""
    weights = main_weights(layer, [name for name in stepped_weights(look, layer) if has_gradient(look, name)])
    updates = [look.of(name, "parameter_update") for name in weights]
    if not weights or any(update is None or update.moments.rms != 0 or not update.moments.count for update in updates):
        return ""
    if any(update is not None and update.moments.nonfinite for update in updates):
        return ""  # what is NaN stays NaN
    rates = [look.stepped[name].rate for name in weights]
    if not any(rates):
        others = [stepped.rate for stepped in look.stepped.values() if stepped.rate]
        # A rate that was not 0 before has come to the end of its schedule.
        was_zero = not any(run.peak_rate[name] for name in weights)
        return f"{NO_RATE}, while other rates go up to {max(others):.2g}" if others and was_zero else ""
    if is_done(run, layer) or all(is_at_end_of_schedule(run, name) for name in weights):
        return ""
    parameter = look.of(weights[0], "parameter_before")
    kind = "" if parameter is None or parameter.dtype is None else f" {str(parameter.dtype).removeprefix('torch.')}"
    return f"a step at a learning rate of {max(rates):.2g} leaves the{kind} weights unchanged"


NO_GRADIENT = Rule("no_gradient", no_gradient, look_at="health/gradient_rms")
NOT_UPDATED = Rule("not_updated", not_updated, look_at="health/update_ratio")
