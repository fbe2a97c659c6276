"""`LayerTable`: what depends on the layers alone, computed once for as long as they stay the same."""

import math
from collections.abc import Sequence

import numpy as np

from hookboard.layers import Kind, Layer


class LayerTable:
    """All layers in the order of execution, as arrays.

    Args:
        layers: all layers that are watched, in that order.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = list(layers)
        self.names = tuple(layer.name for layer in layers)
        self.places = {name: place for place, name in enumerate(self.names)}
        """The place of each layer, by its name."""
        self.weights = tuple(name for layer in layers for name in layer.weights)
        """The names of all weights, layer by layer."""
        self.owner = np.array([i for i, layer in enumerate(layers) for _ in layer.weights], dtype=np.intp)
        """The place of the layer that owns each weight, shape (weights,)."""
        self.has_matrix = np.array([layer.has_matrix for layer in layers], dtype=bool)
        """See `Layer.has_matrix`, shape (layers,)."""
        self.with_matrix: list[int] = np.flatnonzero(self.has_matrix).tolist()
        """The places of those layers."""
        self.inputs = np.array([_inputs(layer.shapes.get(name, ())) for layer in layers for name in layer.weights])
        """How many inputs a unit of each weight has; NaN for those with less than two dimensions, shape (weights,)."""
        self.is_trainable = np.array(
            [name in layer.trainable for layer in layers for name in layer.weights], dtype=bool
        )
        """Which weights may be trained, shape (weights,)."""
        self.trainable = frozenset(name for layer in layers for name in layer.trainable)
        """The names of all weights that may be trained."""
        self.has_untrainable = any(layer.has_matrix and not layer.trainable for layer in layers)
        """Whether a layer with a matrix has no weight that may be trained."""
        self.batch_norms: list[int] = np.flatnonzero(["BatchNorm" in layer.type for layer in layers]).tolist()
        """The places of all batch norms."""
        self._of_kinds: dict[frozenset[Kind], np.ndarray] = {}

    def of_kind(self, kinds: frozenset[Kind]) -> np.ndarray:
        """Which layers are of one of these kinds, shape (layers,), booleans."""
        found = self._of_kinds.get(kinds)
        if found is None:
            found = self._of_kinds[kinds] = np.array([layer.kind in kinds for layer in self.layers], dtype=bool)
        return found

    def first_of_each(self, is_meant: np.ndarray) -> np.ndarray:
        """Of the weights that are meant, shape (weights,), booleans, the first one of each layer: their numbers."""
        rows = np.flatnonzero(is_meant)
        return rows[np.diff(self.owner[rows], prepend=-1) > 0]


def _inputs(shape: Sequence[int]) -> float:
    return float(math.prod(shape[1:])) if len(shape) > 1 else math.nan
