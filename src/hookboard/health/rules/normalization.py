"""Layers that are to keep a scale and do not: norms with other statistics or lost gains, and heavy dropout."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hookboard.health.rules.shared import harm_of, severity_of
from hookboard.health.run import Run, median_of
from hookboard.health.verdict import Severity, Symptom
from hookboard.layers import Kind, Layer

DROPOUTS: frozenset[Kind] = frozenset({"dropout"})

LOW, OFF = 0.67, 1.1
"""How many times its gain, at most or at least, the deviation of a batch norm's channels must be in half of the norms
to be worth a note. With the statistics of the batch it is 1, and less only where epsilon outweighs them."""

FAR_OFF = 2.5
"""Above this it is an alarm whatever the loss does."""

CONSTANT = 1e-3
"""Channels that vary by less than this share of the one that varies most do not count: nothing comes in."""

LOST = 0.2
"""Share of their first size to which gains must fall. In healthy trainings of the benchmark's tuning half 0.64 is
left of the one that falls most."""

FAST = 0.01
"""And by at least this share in each step: a weight decay of 5e-4 at a rate of 0.1 takes 0.00005 (a choice)."""

DROPPED = 0.9
"""The share of values that a dropout must drop to be worth a note: 0.5 is usual, 0.8 the most in use."""


def normalization(run: Run) -> Iterator[Symptom]:
    """Batch norms that do not normalize, and the first dropout that leaves hardly anything."""
    if run.arrays.batch_norms:
        yield from _gains_lost(run)
        yield from _unnormalized(run)
    dropouts = (_heavy_dropout(run, place) for place in np.flatnonzero(run.arrays.of_kind(DROPOUTS)).tolist())
    heavy = [symptom for symptom in dropouts if symptom is not None]
    if len(heavy) > 1:  # what one after the other leaves is their product
        heavy[0] = replace(heavy[0], severity="alarm", evidence=f"{heavy[0].evidence} So do {len(heavy) - 1} others.")
    yield from heavy[:1]


def _gains_lost(run: Run) -> Iterator[Symptom]:
    """Gains that go towards 0, faster than any usual decay takes them there."""
    gains = run.course("weight_rms")[run.arrays.batch_norms]
    is_known = gains[:, 0] > 0
    gains = gains[is_known]
    sizes = gains / gains[:, :1]
    # Where no single one is so low, their median is not.
    if not (sizes < LOST).any():
        return
    steps = np.array(run.course_steps)
    left = np.array([median_of(column) for column in sizes.T.tolist()])
    lowest = int(np.nanargmin(left))  # in the first column it is 1
    fell = -math.log(left[lowest]) if left[lowest] else math.inf
    if not left[lowest] < LOST or fell < FAST * (steps[lowest] - steps[0]):
        return
    now = median_of((run.recent("weight_rms")[run.arrays.batch_norms, -1][is_known] / gains[:, 0]).tolist())
    evidence = (
        f"the gains of batch norms went down to {left[lowest]:.2g} of what they were, in {steps[lowest] - steps[0]} "
        f"steps, and are at {now:.2g} now: what they give, and the gradient that they pass on, goes down with them"
        f"{harm_of(run)}."
    )
    advice = "Look at the weight decay: gains and biases want none."
    start = int(np.argmax(left < 1 / OFF))
    first = run.layers[run.arrays.batch_norms[0]]
    size, since = fell / math.log(10), int(steps[start])
    until = int(steps[left < LOST].max()) if now >= LOST else None
    yield Symptom(first.name, evidence, advice, "alarm", size=size, since=since, until=until)


def takes_the_batch(run: Run, layer: Layer) -> bool:
    """Whether a batch norm gives what the statistics of the batch make of it, as far as can be told."""
    return bool(_is_usual(_normalized(run)[run.place(layer.name)]))


def _is_usual(share: np.ndarray) -> np.ndarray:
    return (share > LOW) & (share < OFF)


def _normalized(run: Run) -> np.ndarray:
    """The deviation of the channels of each layer, as a share of its gain, shape (layers,); NaN if it cannot be told.

    It says something of batch norms only.
    """
    outputs, units, table = run.latest.rows("output"), run.latest.rows("output").units, run.arrays
    deviation = units.column("deviation")
    least = CONSTANT * units.each(np.maximum, deviation)
    is_alive = deviation > np.repeat(least, units.counts)
    alive, squares = units.counts, units.within
    if not is_alive.all():
        alive = units.each(np.add, is_alive, np.intp)
        squares = units.each(np.add, np.where(is_alive, units.squares, 0.0))
    before, after = run.latest.rows("parameter_before"), run.latest.rows("parameter")
    first = table.first_of_each(np.ones(len(table.weights), dtype=bool))
    gains = np.full(len(table.names), np.nan)
    gains[table.owner[first]] = np.where(before.is_there, before.rms, after.rms)[first]
    is_known = (outputs.nonfinite[units.places] == 0) & (2 * alive >= units.counts) & (gains[units.places] > 0)
    known = units.places[is_known]
    shares = np.full(len(table.names), np.nan)
    shares[known] = np.sqrt(squares[is_known] / alive[is_known]) / gains[known]
    return shares


def _unnormalized(run: Run) -> Iterator[Symptom]:
    """Batch norms whose outputs are not what the statistics of the batch give."""
    norms = run.arrays.batch_norms
    shares = _normalized(run)[norms]
    is_known = ~np.isnan(shares)
    off = np.flatnonzero(is_known & ~_is_usual(shares)).tolist()
    # In evaluation mode all of them are off, each as far as its running statistics are.
    if not len(off) >= is_known.sum() / 2 > 0:
        return
    found = [float(shares[i]) for i in off]
    is_trainable = [bool(run.layers[norms[i]].trainable) for i in off]
    is_far = any(not 1 / FAR_OFF < share < FAR_OFF for share in itertools.compress(found, is_trainable))
    severity: Severity = "alarm" if is_far else severity_of(run)
    evidence = (
        f"channels deviate by {min(found):.2g} to {max(found):.2g} times their gain in {len(off)} of {is_known.sum()} "
        f"batch norms; normalized by the statistics of the batch it is 1 exactly: they use others{harm_of(run)}."
    )
    advice = "Look whether they are in evaluation mode while training, and whether their statistics fit the data."
    size = max(abs(float(np.log10(share))) for share in found)
    yield Symptom(run.layers[norms[0]].name, evidence, advice, severity, size=size)


def _heavy_dropout(run: Run, place: int) -> Symptom | None:
    layer = run.layers[place]
    output = run.now.numbers(layer.name, "output")
    given = run.now.numbers(run.layers[place - 1].name, "output") if place else None
    if output is None or given is None or output.moments.count != given.moments.count:
        return None
    left = given.moments.count - given.moments.zeros
    dropped = 1 - (output.moments.count - output.moments.zeros) / left if left else 0.0
    if not DROPPED <= dropped < 1:
        return None
    evidence = f"it drops {100 * dropped:.0f} % of what it is given, and scales the rest by {1 / (1 - dropped):.2g}"
    return Symptom(layer.name, f"{evidence}{harm_of(run)}.", "Lower its rate.", severity_of(run), size=dropped)
