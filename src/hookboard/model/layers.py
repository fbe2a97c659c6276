"""What is known of layers besides their numbers: kind, weights, where channels stand, and which feeds which."""

import functools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookboard.base.torch_private import parameters_in
from hookboard.model.nested import shape_of
from hookboard.model.selection import PARAMETRIZATIONS
from hookboard.model.sites import OF_PARTS, ROLES, Site

Activation = Literal["rectifier", "bounded", "smooth"]
Norm = Literal["norm", "activated_norm"]
Kind = Literal[Activation, Norm, "linear", "conv", "embedding", "recurrent", "attention", "dropout", "other"]

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)

_KINDS: dict[Kind, tuple[type[nn.Module], ...]] = {
    "rectifier": (nn.ReLU, nn.ReLU6, nn.Threshold),
    "bounded": (nn.Tanh, nn.Sigmoid, nn.Hardtanh, nn.Hardsigmoid, nn.Softsign),
    "smooth": (nn.GELU, nn.SiLU, nn.Mish, nn.ELU, nn.SELU, nn.CELU, nn.LeakyReLU, nn.PReLU, nn.Softplus, nn.Hardswish),
    "norm": (*BATCH_NORMS, *INSTANCE_NORMS, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm),
    "linear": (nn.Linear, nn.Bilinear),
    "conv": (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    "embedding": (nn.Embedding, nn.EmbeddingBag),
    "recurrent": (nn.RNNBase, nn.RNNCellBase),
    "attention": (nn.MultiheadAttention,),
    "dropout": (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout),
}
"""A layer is compared with others of its kind first. Order matters: `ReLU6` is a `Hardtanh` too."""

NORM_NAME = re.compile(r"(?<!Weight)(?<!Spectral)(?<!Act)(?:[Nn]orm|NORM)(?:ali[sz](?:e|er|ation))?(?![a-z])")
"""Class names of normalization layers that are none of torch's, such as `LlamaRMSNorm`. Weight and spectral norms
normalize weights, and the `ActNorm` of a normalizing flow is an affine map."""

LEAKY_NAME = re.compile(r"GELU|Gelu|S[Ii]L[Uu]|Swish|Mish|(?<![a-z])ELU|SELU|CELU|Leaky|[PR]Re[Ll][Uu]|Softplus")
"""Class names of smooth or leaky activations that are none of torch's, such as `QuickGELUActivation`."""

RECTIFIER_NAME = re.compile(r"Re[Ll][Uu]")
"""Class names of activations that give 0 below 0, unless `LEAKY_NAME` fits, such as `ReLUSquaredActivation`."""

NORM_KINDS: frozenset[Kind] = frozenset(get_args(Norm))  # of layers that normalize

CHANNELS_SECOND_NAME = re.compile(r"Batch|Group|Instance|\dd")
"""Class names of norms whose channels are the second dimension, else the last, unless the shape tells which."""


@dataclass(frozen=True)
class Layer:
    """One module that is watched.

    Args:
        weights: the dotted names of its own weights, without those of submodules.
        trainable: those with a parameter that requires gradients.
        has_modes: whether it may do something else in evaluation than in training.
        is_computed: whether a parametrization or pruning computes what it uses from its weights.
    """

    name: str
    type: str
    kind: Kind
    weights: tuple[str, ...] = ()
    trainable: frozenset[str] = frozenset()
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    has_modes: bool = False
    is_computed: bool = False

    @property
    def is_called(self) -> bool:
        """True if the module can be called: it is neither the LightningModule nor a container of parameters."""
        return bool(self.name) and self.type not in ("ParameterList", "ParameterDict")

    @property
    def is_batch_norm(self) -> bool:
        """True for a batch norm, unless it applies an activation too."""
        return self.kind == "norm" and "BatchNorm" in self.type

    @functools.cached_property
    def has_matrix(self) -> bool:
        """True if a weight has at least two dimensions or an unknown shape; gains and biases often start at 0 or 1."""
        return any(len(self.shapes.get(name, (1, 1))) > 1 for name in self.weights)

    @functools.cached_property
    def stepped(self) -> tuple[str, ...]:
        """The names of the trainable weights."""
        return tuple(name for name in self.weights if name in self.trainable)


def kind_of(module: nn.Module) -> Kind:
    """Return the kind of a module, of a class that is not torch's by its name; `other` if it is none of the known ones.

    >>> kind_of(nn.ReLU()), kind_of(nn.Sequential(nn.ReLU()))
    ('rectifier', 'other')
    """
    children = [child for _, child in nn.Module.named_children(module)]
    kind = next((kind for kind, types in _KINDS.items() if isinstance(module, types)), None)
    kind = kind or _kind_by_name(module, children)
    if kind == "norm" and any(not isinstance(child, nn.Identity) for child in children):
        return "activated_norm"
    return kind


def _kind_by_name(module: nn.Module, children: Sequence[nn.Module]) -> Kind:
    name = type(module).__name__
    if any(map(parameters_in, children)):
        return "other"  # a block
    if NORM_NAME.search(name):
        # At most one dimension of a gain or a bias is not 1.
        shapes = [shape_of(p) or () for p in parameters_in(module).values() if not is_lazy(p)]
        are_vectors = all(math.prod(shape) == max(shape, default=1) for shape in shapes)
        return "norm" if are_vectors else "other"
    if parameters_in(module) or children:
        return "other"
    if LEAKY_NAME.search(name):
        return "smooth"
    return "rectifier" if RECTIFIER_NAME.search(name) else "other"


def layers_of(modules: Mapping[str, nn.Module], weights: Mapping[str, nn.Parameter]) -> dict[str, Layer]:
    """Return a `Layer` for each module by name; `weights`, by dotted name, are without lazy ones, which have no shape.

    >>> layers_of({"head": nn.Linear(2, 1)}, {})["head"].kind
    'linear'
    """
    owned: dict[str, list[str]] = {}
    for name in weights:
        owned.setdefault(_user_of(name), []).append(name)
    layers = {}
    for name, module in modules.items():
        if PARAMETRIZATIONS in name.split("."):
            continue
        names = tuple(owned.get(name, ()))
        shapes = {weight: shape for weight in names if (shape := shape_of(weights[weight])) is not None}
        trainable = frozenset(weight_name for weight_name in names if weights[weight_name].requires_grad)
        is_computed = hasattr(module, "parametrizations") or any(weight_name.endswith("_orig") for weight_name in names)
        traits = kind_of(module), names, trainable, shapes, _has_modes(module), is_computed
        layers[name] = Layer(name, type(module).__name__, *traits)
    return layers


def _user_of(weight: str) -> str:
    """Return the layer that uses a weight: its owner, or the one for which a parametrization computes with it."""
    parts = weight.split(".")[:-1]
    return ".".join(parts[: parts.index(PARAMETRIZATIONS)] if PARAMETRIZATIONS in parts else parts)


def _has_modes(module: nn.Module) -> bool:
    """Return True if the code of a module reads whether it is in training, and nothing shows that this has no effect.

    >>> [_has_modes(module) for module in (nn.Dropout(), nn.BatchNorm1d(2), nn.MaxPool1d(2), nn.LSTM(2, 2))]
    [True, True, False, False]
    """
    shares = (getattr(module, name, None) for name in ("p", "dropout"))
    is_off = any(isinstance(share, int | float) and share == 0 for share in shares)
    is_off |= getattr(module, "track_running_stats", True) is False
    forward = getattr(type(module), "forward", None)  # that of a TorchScript module cannot be read
    return not is_off and "training" in getattr(forward, "__code__", _has_modes.__code__).co_names


def order_with_late(order: Iterable[str], late: Iterable[str], defined: Sequence[str]) -> list[str]:
    """Return an order of execution with later layers put in, each after all layers that the model defines before it.

    >>> order_with_late(["c", "a"], ["b"], ["a", "b", "c"])
    ['c', 'a', 'b']
    """
    order, places = list(order), {name: place for place, name in enumerate(defined)}
    for name in [name for name in dict.fromkeys(late) if name not in set(order)]:
        behind = [place for place, other in enumerate(order, 1) if places.get(other, math.inf) < places[name]]
        order.insert(behind[-1] if behind else 0, name)
    return order


class ChannelDims:
    """Finds the dimension of a tensor that holds its channels (units, features).

    >>> import torch
    >>> dims = ChannelDims({"fc": Layer("fc", "Linear", "linear"), "gelu": Layer("gelu", "GELU", "smooth")})
    >>> dims(Site("gelu", "grad_output"), torch.zeros(2, 7, 16))
    2
    """

    def __init__(self, layers: Mapping[str, Layer], *, with_gradients: bool = True) -> None:
        self._layers, self._with_gradients = layers, with_gradients
        self._is_last: bool | None = None
        """Whether the channels were last in the latest layer that ran and does not follow others."""
        self._before: dict[str, bool] = {}
        """The same of the layer before each that follows others, by the name of this one."""
        # A layer without weights, such as an activation function, has its channels where the layer before it has them.
        # Until `follow` tells which one that is, the model's definition decides: a module with submodules ends with the
        # last of them.
        is_last = False
        for name, layer in layers.items():
            is_last, parts = _stands_last(layer, is_last), name.split(".")
            self._before |= {".".join(parts[:depth]): is_last for depth in range(len(parts) + 1)}

    def follow(self, site: Site) -> None:
        """Note that a module runs for the first time; call this in the order of execution."""
        layer = self._layers.get(site.name)
        if not _follows(layer):
            self._is_last = _stands_last(layer, False)
        elif self._is_last is not None:
            self._before[site.name] = self._is_last

    def __call__(self, site: Site, tensor: Tensor) -> int | None:
        """Return the dimension of the site's tensor that holds the channels; None if it has none."""
        traits, layer = ROLES[site.role], self._layers.get(site.name)
        if site.role == "input" and not site.name:  # the batch, whose integers are tokens
            features = 2 if tensor.dim() == 3 else 1  # of a sequence, of all others
            return features if tensor.dim() >= 2 and tensor.dtype.is_floating_point else None
        if site.role in OF_PARTS:
            return 0
        if tensor.dim() < 2 or site.role == "parameter_update":
            return None
        if traits.of_parameter:
            return 0  # the unit whose weights these are
        if traits.is_gradient and not self._with_gradients:
            return None
        is_last = _stands_last(layer, self._before.get(site.name, False), tensor)
        if not _follows(layer) and not traits.is_gradient:
            self._is_last = is_last  # of a norm the tensor tells more than `follow` knows
        return _dim(layer, tensor, is_last)


def _follows(layer: Layer | None) -> bool:
    """Return True if a layer has its channels where the one before it has them."""
    return _stands_last(layer, False) != _stands_last(layer, True)


def _stands_last(layer: Layer | None, before: bool, tensor: Tensor | None = None) -> bool:
    """Return True if a layer's output has its channels in the last dimension; `before` says so of the layer before."""
    if layer is None:
        return before
    if layer.kind in ("linear", "embedding", "recurrent", "attention"):
        return True
    if layer.kind in NORM_KINDS:
        if layer.shapes and tensor is not None and not tensor.is_nested:  # a nested one has no sizes
            gains = math.prod(next(iter(layer.shapes.values())))
            # If only one of the two dimensions has as many elements as the norm has gains, it is that one, whatever the
            # name.
            is_second, is_last = tensor.shape[1] == gains, tensor.shape[-1] == gains
            if is_second != is_last:
                return is_last
        return CHANNELS_SECOND_NAME.search(layer.type) is None
    return before and layer.kind != "conv"


def _dim(layer: Layer | None, tensor: Tensor, is_last: bool) -> int:
    """Return the channel dimension of a tensor with at least two: 1 or the last; for a convolution its kernels tell."""
    if layer is not None and layer.kind == "conv" and layer.shapes:
        spatial = len(next(iter(layer.shapes.values()))) - 2
        return tensor.dim() - spatial - 1
    return tensor.dim() - 1 if is_last else 1
