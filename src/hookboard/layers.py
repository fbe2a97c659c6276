"""`Layer`: what is known of a module beside its numbers: its kind, its range, where its channels stand, its order."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor, nn

from hookboard.layouts import shape_of
from hookboard.parameters import Weight
from hookboard.sites import ROLES, Site

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

NORMS_OF_THE_LAST = ("LayerNorm", "RMSNorm")
"""Normalization layers whose channels stand in the last dimension; those of all others stand in the second."""

END = 0.97
"""How far from the middle of its range to the end an output is saturated: tanh beyond 2.1, where it passes 6 % of the
gradient (Karpathy)."""

RANGES = {
    "Tanh": (-1.0, 1.0),
    "Sigmoid": (0.0, 1.0),
    "Hardtanh": (-1.0, 1.0),
    "Hardsigmoid": (0.0, 1.0),
    "Softsign": (-1.0, 1.0),
}
"""By the name of the class; a Hardtanh may be given another one."""


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


def ends_of(module: nn.Module) -> tuple[float, float] | None:
    """From which two values on an output of this module is saturated; None if it is no bounded activation.

    >>> ends_of(nn.Tanh())
    (-0.97, 0.97)
    """
    if kind_of(module) != "bounded":
        return None
    if isinstance(module, nn.Hardtanh):
        low, high = module.min_val, module.max_val
    else:
        low, high = next(RANGES[kind.__name__] for kind in type(module).__mro__ if kind.__name__ in RANGES)
    middle, half = (low + high) / 2, (high - low) / 2
    return middle - END * half, middle + END * half


def with_late_ones(order: Iterable[str], late: Iterable[str], defined: Sequence[str]) -> list[str]:
    """The order in which layers ran first, with those that came later put where the model defines them.

    Args:
        order: the names of those that ran at first, in their order.
        late: names, of which some may be in `order`.
        defined: all names, in the order of the model.

    >>> with_late_ones(["c", "a"], ["b"], ["a", "b", "c"])
    ['c', 'a', 'b']
    """
    order = list(order)
    there = set(order)
    missing = [name for name in dict.fromkeys(late) if name not in there]
    if missing:
        places = {name: place for place, name in enumerate(defined)}
        for name in missing:
            own = places[name]
            behind = [place for place, other in enumerate(order, 1) if places.get(other, own) < own]
            order.insert(behind[-1] if behind else 0, name)
    return order


class ChannelDims:
    """Tells the dimension of channels of each tensor; asked in the order of execution, each layer once at least.

    A layer without weights, such as an activation function, has its channels where the layer before it had them when it
    was asked first.

    Args:
        layers: every layer that is watched, by name.

    Example:
        >>> import torch
        >>> dims = ChannelDims({"conv": Layer("conv", "Conv2d", "conv"), "relu": Layer("relu", "ReLU", "rectifier")})
        >>> [dims(Site(name, "output"), torch.zeros(2, 3, 8, 8)) for name in ("conv", "relu")]
        [1, 1]
    """

    def __init__(self, layers: Mapping[str, Layer]) -> None:
        self._layers = layers
        self._is_last = False
        self._known: dict[tuple[str, int], tuple[Layer | None, bool]] = {}

    def __call__(self, site: Site, tensor: Tensor) -> int | None:
        """The dimension; None if the tensor has no channels, or they are not wanted."""
        if site.role == "input" and not site.name:
            return _of_batch(tensor)
        if site.role in ("parameter", "parameter_grad"):
            return 0 if tensor.dim() >= 2 else None  # the unit whose weights these are
        if site.role not in ("output", "input") or tensor.dim() < 2:
            return None
        layer, key = self._layers.get(site.name), (site.name, tensor.dim())
        known = self._known.get(key)
        if known is None or known[0] is not layer:  # a model may get another layer of that name
            known = self._known[key] = layer, _stands_last(layer, self._is_last)
        self._is_last = known[1]
        return _dim(layer, tensor, self._is_last)


class DefinedDims:
    """Tells the dimension of channels of each tensor, in whatever order it is asked, of any part of the layers.

    A layer without weights is taken to follow the layer that the model defines before it, a module with layers inside
    to end with the last of them.

    Args:
        layers: all layers of the model by name, in the order in which it defines them.

    Example:
        >>> import torch
        >>> layers = {"fc": Layer("fc", "Linear", "linear"), "gelu": Layer("gelu", "GELU", "smooth")}
        >>> DefinedDims(layers)(Site("gelu", "grad_output"), torch.zeros(2, 7, 16))
        2
    """

    def __init__(self, layers: Mapping[str, Layer]) -> None:
        self._layers = layers
        self._stands_last: dict[str, bool] = {}
        is_last = False
        for name, layer in layers.items():
            is_last = _stands_last(layer, is_last)
            parts = name.split(".")
            for depth in range(len(parts) + 1):
                self._stands_last[".".join(parts[:depth])] = is_last

    def __call__(self, site: Site, tensor: Tensor) -> int | None:
        """The dimension; None if the tensor has no channels."""
        if tensor.dim() < 2 or ROLES[site.role].moments_only:
            return None
        if ROLES[site.role].of_parameter:
            return 0
        return _dim(self._layers.get(site.name), tensor, self._stands_last.get(site.name, False))


def _stands_last(layer: Layer | None, before: bool) -> bool:
    """Whether a layer has its channels in the last dimension, by what held before it."""
    if layer is None:
        return before
    if layer.kind in ("linear", "embedding", "recurrent", "attention"):
        return True
    if layer.kind == "norm":
        return layer.type in NORMS_OF_THE_LAST
    return before and layer.kind != "conv"


def _dim(layer: Layer | None, tensor: Tensor, is_last: bool) -> int:
    """The dimension of the channels of a tensor with two dimensions or more."""
    if layer is not None and layer.kind == "conv" and layer.shapes:
        spatial = len(next(iter(layer.shapes.values()))) - 2
        return tensor.dim() - spatial - 1
    return tensor.dim() - 1 if is_last else 1


def _of_batch(tensor: Tensor) -> int | None:
    """The features of a batch: the second dimension of images and tables, the last of sequences."""
    if tensor.dim() < 2 or not tensor.dtype.is_floating_point:
        return None
    return 2 if tensor.dim() == 3 else 1
