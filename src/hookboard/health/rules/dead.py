"""`Dead`: the dead units of one layer, and what tells whether its units are counted."""

from dataclasses import dataclass

import numpy as np

from hookboard.health.rules.shared import counted, source_of, weight_of
from hookboard.health.run import Run
from hookboard.layers import Layer
from hookboard.measure import FIELDS

_COUNT, _ZEROS = map(FIELDS.index, ("count", "zeros"))


@dataclass(frozen=True)
class Dead:
    """The dead units of one layer.

    Args:
        at: the rectifier (or the layer itself, where the activation is called as a function).
        source: the layer whose weights make them so.
        dead: how many are dead.
        units: how many were looked at, apart from those whose weights are all 0.
        since: the step since which each of the dead ones is silent, sorted, shape (dead,).
        width: how many units the layer has.
        is_sample: whether only every k-th of them was looked at.
    """

    at: Layer
    source: Layer
    dead: int
    units: int
    since: np.ndarray
    width: int
    is_sample: bool

    @property
    def share(self) -> float:
        """The share of dead units."""
        return self.dead / self.units

    @property
    def in_words(self) -> str:
        """How many of how many units are dead."""
        return counted(self.dead, self.units, "units", self.width if self.is_sample else None)


def dead_of(
    at: Layer, source: Layer, dead: np.ndarray, counts: np.ndarray, since: np.ndarray, width: int
) -> Dead | None:
    """The dead units of a layer; None if no unit counts.

    Args:
        at: see `Dead`, as `source` and `width`.
        source: see above.
        dead: which are dead, shape (units,).
        counts: which count, shape (units,).
        since: the step since which each is silent, shape (units,).
        width: see above.
    """
    if not counts.any():
        return None
    return Dead(at, source, int(dead.sum()), int(counts.sum()), np.sort(since[dead]), width, len(counts) < width)


def is_finite(run: Run, layer: Layer) -> bool:
    """Whether the layer gave an output at this look, and all of it is finite."""
    output = run.now.numbers(layer.name, "output")
    return output is not None and not output.moments.nonfinite


def has_no_weights(run: Run, layer: Layer, width: int, every: int) -> np.ndarray | None:
    """Which of every so many units have only zeros as weights, as after pruning; None if that was not measured.

    Of a norm, the weights of the layer before it count.
    """
    rows = weight_of(run, layer, width, every)
    if rows is None and layer.kind == "norm":
        before = source_of(run, layer, width)
        rows = weight_of(run, before, width, every) if before is not None else None
    # A row of NaN alone has no values that count, and is not 0.
    return None if rows is None else np.asarray((rows[:, _ZEROS] >= rows[:, _COUNT]) & (rows[:, _COUNT] > 0))


def has_its_own_activation(run: Run, layer: Layer) -> bool:
    """Whether the layer that runs next is an activation that tells by itself which of these units are dead."""
    behind = next(iter(run.layers[run.place(layer.name) + 1 :]), None)
    if behind is None or behind.kind not in ("rectifier", "bounded"):
        return False
    mine, activated = (run.now.numbers(each.name, "output") for each in (layer, behind))
    if behind.kind == "bounded" or mine is None or activated is None:
        return True
    # A rectifier that several layers share, as in torchvision's ResNets, has seen more than this one.
    return mine.moments.count >= activated.moments.count


def is_used(run: Run, layer: Layer, units: int) -> bool:
    """Whether a layer that runs later takes so many units: those of a head are silent where a class never comes."""
    later = [(other, shape) for other in run.layers[run.place(layer.name) + 1 :] for shape in other.shapes.values()]
    if any(shape == (units,) and other.kind == "norm" for other, shape in later):
        return True
    takes = [shape[1] for _, shape in later if len(shape) > 1]
    return units in takes or (layer.kind != "linear" and any(taken % units == 0 for taken in takes))
