"""`Layer`: what rules need to know of a module beside its numbers."""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import nn

from hookboard.layouts import shape_of
from hookboard.parameters import Weight

Kind = Literal[
    "rectifier",
    "bounded",
    "smooth",
    "norm",
    "linear",
    "conv",
    "embedding",
    "recurrent",
    "attention",
    "dropout",
    "other",
]

_KINDS: dict[Kind, tuple[type[nn.Module], ...]] = {
    "rectifier": (nn.ReLU, nn.ReLU6, nn.Threshold),
    "bounded": (nn.Tanh, nn.Sigmoid, nn.Hardtanh, nn.Hardsigmoid, nn.Softsign),
    "smooth": (nn.GELU, nn.SiLU, nn.Mish, nn.ELU, nn.SELU, nn.CELU, nn.LeakyReLU, nn.PReLU, nn.Softplus, nn.Hardswish),
    "norm": (
        nn.BatchNorm1d,
        nn.BatchNorm2d,
        nn.BatchNorm3d,
        nn.SyncBatchNorm,
        nn.InstanceNorm1d,
        nn.InstanceNorm2d,
        nn.InstanceNorm3d,
        nn.LayerNorm,
        nn.GroupNorm,
        nn.RMSNorm,
    ),
    "linear": (nn.Linear, nn.Bilinear),
    "conv": (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    "embedding": (nn.Embedding, nn.EmbeddingBag),
    "recurrent": (nn.RNNBase, nn.RNNCellBase),
    "attention": (nn.MultiheadAttention,),
    "dropout": (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout),
}
"""The kinds of layers: a layer is compared with others of its kind first. `ReLU6` is a `Hardtanh` too: order counts."""


@dataclass(frozen=True)
class Layer:
    """One module that is watched.

    Args:
        name: its dotted name.
        type: the name of its class.
        kind: what it is; `other` if none of the known kinds.
        weights: the dotted names of the weights that it owns itself.
        trainable: those of them that may be trained (`requires_grad`).
        shapes: the shape of each weight, by its dotted name.
        computed: those of the weights that a parametrization computes; they have no gradient of their own.
    """

    name: str
    type: str
    kind: Kind
    weights: tuple[str, ...] = ()
    trainable: frozenset[str] = frozenset()
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    computed: frozenset[str] = frozenset()

    @property
    def is_called(self) -> bool:
        """Whether it is a module that can be called: neither the LightningModule nor a container of parameters."""
        return bool(self.name) and self.type not in ("ParameterList", "ParameterDict")

    @functools.cached_property
    def has_matrix(self) -> bool:
        """Whether a weight has two or more dimensions, or may have: gains and biases often start at 0 or 1."""
        return any(len(self.shapes.get(name, (1, 1))) > 1 for name in self.weights)

    @functools.cached_property
    def stepped(self) -> tuple[str, ...]:
        """Those of the trainable weights that may have a gradient of their own."""
        return tuple(name for name in self.weights if name in self.trainable - self.computed)


def kind_of(module: nn.Module) -> Kind:
    """The kind of a module."""
    return next((kind for kind, types in _KINDS.items() if isinstance(module, types)), "other")


def layers_of(modules: Mapping[str, nn.Module], weights: Mapping[str, Weight]) -> dict[str, Layer]:
    """A layer for each module, by name.

    Args:
        modules: name to module: all that are watched, or own weights.
        weights: the weights of these modules, by dotted name.

    >>> layers_of({"head": nn.Linear(2, 1)}, {})["head"].kind
    'linear'
    """
    owned: dict[int, list[str]] = {}
    for name, weight in weights.items():
        owned.setdefault(id(weight.module), []).append(name)
    layers = {}
    for name, module in modules.items():
        names = tuple(owned.get(id(module), ()))
        shapes = {weight: shape for weight in names if (shape := shape_of(weights[weight].parameters[0])) is not None}
        computed = frozenset(weight for weight in names if weights[weight].is_computed)
        trainable = _trainable(names, weights)
        layers[name] = Layer(name, type(module).__name__, kind_of(module), names, trainable, shapes, computed)
    return layers


def _trainable(names: Iterable[str], weights: Mapping[str, Weight]) -> frozenset[str]:
    return frozenset(name for name in names if any(p.requires_grad for p in weights[name].parameters))
