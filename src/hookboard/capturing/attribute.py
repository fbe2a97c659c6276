"""Finds a model's classifier and target layer, and reads the layer's output and the gradient of the class score."""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hookboard.base.ranks import whole
from hookboard.measure.hooked import READS_BEFORE_EDITS, Hooks, hooked, is_own_call
from hookboard.measure.taps import layers_around
from hookboard.model.nested import map_tensors, shape_of, tensors_in
from hookboard.model.selection import named_submodules
from hookboard.tracing.step import undisturbed

Shape = tuple[int, ...]

MAX_PICTURE_CHANNELS = 16
"""Maximum number of channels of a picture, spectral bands included; a tensor with more is taken for a feature map."""


@dataclass(frozen=True)
class InnerCall:
    """One call of a module inside the classifier.

    Args:
        given: the shape of the first tensor among its arguments; () if there is none, or if that is nested.
        returned: the shape of the first tensor that it returned; () likewise.
    """

    name: str
    module: nn.Module
    given: Shape
    returned: Shape


@dataclass(frozen=True)
class Classification:
    """A call that turned pictures of shape (n, channels, height, width) into class scores.

    Args:
        pictures: the pictures among its arguments, shape (n, channels, height, width).
        args: its positional arguments, copied, for the first samples only.
        calls: the calls of modules inside it, in the order in which they ended.
        of: number of samples in the batch.
    """

    module: nn.Module
    pictures: Tensor
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    calls: Sequence[InnerCall]
    of: int


class ClassificationTap:
    """Hooks all modules of a model to find the outermost call that turns pictures into class scores.

    That call is in `found`, which is None until there is one. Calls that hookboard makes itself are ignored. Arguments
    are kept as they were before any edit, because a repeated call is edited again. An error in the hooks never reaches
    the model: it is stored in `error`, and the hooks then do nothing. In a copy of the model, saved or not, the hooks
    do nothing.
    """

    def __init__(self, model: nn.Module, samples: int) -> None:
        self.found: Classification | None = None
        self.error: Exception | None = None
        self._model = model
        self._samples = samples
        self._hooks = ExitStack()
        self._running: list[tuple[int, Any, Any]] = []
        """Of each running call: how many calls had ended before it, its arguments, and its own `forward`, if any."""
        self._calls: list[InnerCall] = []
        self._depth_of_found = 0

    def attach(self) -> None:
        """Start to watch the calls of all modules of the model, except TorchScript modules."""
        around = layers_around(self._model)
        for name, module in [("", self._model), *named_submodules(self._model)]:
            is_fused = id(module) in around and not around[id(module)].training
            if is_fused or isinstance(module, torch.jit.ScriptModule):  # a hook would change what torch computes
                continue
            before = functools.partial(self._guarded, self._enter)
            after = functools.partial(self._guarded, self._leave, name)
            hooks = hooked(module, before, after, place=READS_BEFORE_EDITS, with_kwargs=True, always_call=True)
            self._hooks.enter_context(hooks)

    def detach(self) -> None:
        """Remove every hook."""
        self._hooks.close()

    def _guarded(self, act: Callable[..., None], *given: Any) -> None:
        if self.error is None and not is_own_call():
            try:
                act(*given)
            except Exception as error:  # kept for the caller: raised in a hook, it would end the user's forward pass
                self.error = error

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        pictures = _pictures_in((args, kwargs))

        def first_samples(tensor: Tensor) -> Tensor:
            is_of_samples = pictures is not None and tensor.ndim and len(tensor) == len(pictures)
            return tensor[: self._samples].clone() if is_of_samples else tensor

        # What is made under inference_mode could not be saved for a gradient.
        with torch.inference_mode(False):
            kept = None if pictures is None else map_tensors(first_samples, (pictures, args, kwargs))
        self._running.append((len(self._calls), kept, module.__dict__.get("forward")))

    def _leave(self, name: str, module: nn.Module, args: Any, kwargs: Any, output: object) -> None:
        start, kept, forward = self._running.pop()
        self._calls.append(InnerCall(name, module, _first_shape((args, kwargs)), _first_shape(output)))
        pictures, depth = _pictures_in((args, kwargs)), len(self._running)
        is_outer = self.found is None or depth < self._depth_of_found
        # Under DDP Lightning calls the module with another `forward`, which puts the old one back and runs the step.
        is_redirected = module.__dict__.get("forward") is not forward
        if pictures is not None and is_outer and not is_redirected and scores_in(output, len(pictures)) is not None:
            self._depth_of_found, (shown, args, kwargs) = depth, kept
            self.found = Classification(module, shown, args, kwargs, self._calls[start:], len(pictures))


def _pictures_in(given: object) -> Tensor | None:
    """Return the first tensor of shape (n, channels, height, width) with at most MAX_PICTURE_CHANNELS channels."""
    fours = (t for _, t in tensors_in(given) if not t.is_nested and t.ndim == 4)
    return next((t for t in fours if len(t) and t.shape[1] <= MAX_PICTURE_CHANNELS), None)


def _first_shape(value: object) -> Shape:
    return next((shape_of(tensor) or () for _, tensor in tensors_in(value)), ())


def scores_in(output: object, count: int) -> Tensor | None:
    """Return the class scores in a model's output: a floating tensor of shape (count, classes) or (count,).

    It is one called "logits" or "scores", or else the first of shape (count, classes), or else the whole output; None
    if that is no such tensor. One score becomes two classes: class 1 has the score, class 0 its negative.

    >>> scores_in({"loss": torch.tensor(0.5), "logits": torch.tensor([[2.0], [-1.0]])}, count=2)
    tensor([[-2.,  2.],
            [ 1., -1.]])
    """
    found = {
        path: t
        for path, t in tensors_in(output)
        if not t.is_nested and t.ndim in (1, 2) and len(t) == count and t.is_floating_point()
    }
    named = [t for path, t in found.items() if path.rpartition("/")[2] in ("logits", "scores")]
    # One number for each sample, among other tensors, may be anything, such as its loss.
    scores = next(iter([*named, *(t for path, t in found.items() if t.ndim == 2 or not path)]), None)
    return None if scores is None else _for_classes(scores[:, None] if scores.ndim == 1 else scores, 1)


def _for_classes(values: Tensor, dim: int) -> Tensor:
    """Return values for each class: those of the only one are made those of two, of which the first has negatives."""
    return torch.cat([-values, values], dim) if values.shape[dim] == 1 else values


@dataclass(frozen=True)
class TargetLayer:
    """The module whose output (or first input) is explained; `number` says in which of its calls, from 0."""

    name: str
    module: nn.Module
    number: int = 0
    is_input: bool = False


def default_layers(seen: Classification) -> list[TargetLayer]:
    """Return the layers of which the last that the scores depend on is explained if the user names none.

    They are the last convolution, with the calls after it that returned maps of the same height and width, so that
    normalization, ReLU and the modules around them are included. In a transformer it is the input of the last
    attention, or of the last `nn.TransformerEncoderLayer`: after it the scores may depend on the class token alone.

    Raises:
        ValueError: no module returned maps.
    """
    calls = seen.calls
    attention = max((k for k, call in enumerate(calls) if _is_attention(call)), default=-1)
    convolutions = (k for k, call in enumerate(calls) if isinstance(call.module, nn.Conv2d))
    start = max((k for k in convolutions if math.prod(calls[k].returned[2:]) > 1), default=len(calls))
    group = [k for k in range(start, len(calls)) if calls[k].returned[2:] == calls[start].returned[2:]]
    is_input = attention > max(group, default=-1)
    if is_input:
        group = [attention]
    if not group:
        raise ValueError("no module returned maps larger than one pixel: name a layer with `modules`")
    return [TargetLayer(calls[k].name, calls[k].module, _number(calls, k), is_input) for k in group]


def _is_attention(call: InnerCall) -> bool:
    is_one = isinstance(call.module, nn.TransformerEncoderLayer) or "attention" in type(call.module).__name__.lower()
    return is_one and len(call.given) in (3, 4)


def named_layer(calls: Sequence[InnerCall], name: str) -> TargetLayer:
    """Return the `TargetLayer` for a module: its output in the last of its calls that returned maps or tokens.

    Raises:
        ValueError: no call of this module returned a tensor with four or three dimensions.
    """
    for k, call in reversed(list(enumerate(calls))):
        if call.name == name and len(call.returned) in (3, 4):
            return TargetLayer(name, call.module, _number(calls, k))
    raise ValueError(f"module {name!r} returned neither maps of shape (n, channels, height, width) nor tokens")


def _number(calls: Sequence[InnerCall], k: int) -> int:
    """Return which of its module's calls the k-th call is, counted from 0."""
    return sum(call.module is calls[k].module for call in calls[:k])


@dataclass(frozen=True)
class Attribution:
    """The output of a target layer for some samples (its first input with `TargetLayer.is_input`), and its gradient.

    All tensors are on the host.

    Args:
        layer: the layer.
        activation: that output or input, such as shape (n, channels, height, width) or (n, tokens, channels).
        gradient: the gradient of each sample's class score with respect to `activation`, same shape; None if not
            computed.
        scores: the class scores, shape (n, classes).
        classes: the class of each sample.
        pooled: the input of the last linear layer, shape (n, features) in most classifiers; None without a linear
            layer.
        weight: that layer's weights for each sample's class, shape (n, features); None if it has not one output for
            each class.
    """

    layer: TargetLayer
    activation: Tensor
    gradient: Tensor | None
    scores: Tensor
    classes: Tensor
    pooled: Tensor | None
    weight: Tensor | None


def attribute(
    call: Classification,
    layers: Sequence[TargetLayer],
    choose: Callable[[Tensor], Tensor],
    *,
    with_gradient: bool,
) -> Attribution:
    """Call the model once more on the kept samples, for one of the layers: its tensor, its gradient if asked.

    Modules stay in training or evaluation mode, and attached edits apply. The call leaves no trace, see `undisturbed`.

    The layer is the last; with a gradient the last that the scores depend on. `choose` maps the scores, shape (n,
    classes), to the class of each sample.

    Raises:
        ValueError: with `with_gradient`, the class scores depend on no layer.
    """
    linear = [c.module for c in call.calls if isinstance(c.module, nn.Linear)]
    held: dict[TargetLayer, Tensor] = {}
    pooled: list[Tensor] = []
    with undisturbed(call.module), ExitStack() as hooks:
        for layer in layers:
            hooks.enter_context(_cut_graph(layer, held))
        if linear:
            hooks.enter_context(hooked(linear[-1], lambda _, args, kwargs: pooled.append(args[0])))
        scores = scores_in(call.module(*call.args, **call.kwargs), len(call.pictures))
        assert scores is not None, "the model returned class scores before"
        classes = choose(scores.detach())
        gradients: Sequence[Tensor | None] = [None] * len(held)
        if with_gradient and scores.requires_grad and held:
            score = scores.gather(1, classes[:, None]).sum()
            gradients = torch.autograd.grad(score, [*held.values()], allow_unused=True)
        weight = _for_classes(whole(linear[-1].weight), 0) if linear else None
    read = [pair for pair in zip(held, gradients, strict=True) if pair[1] is not None or not with_gradient]
    if not read:
        raise ValueError(
            f"the class scores do not depend on the first tensor that module {layers[-1].name!r} "
            f"{'took' if layers[-1].is_input else 'returned'}, or it runs under torch.no_grad(): name another with "
            "`modules`"
        )
    layer, gradient = read[-1]
    of_classes = weight[classes] if weight is not None and len(weight) == scores.shape[1] else None
    tensors = held[layer], gradient, scores, classes, pooled[-1] if pooled else None, of_classes
    host: list[Any] = [None if tensor is None else tensor.detach().cpu() for tensor in tensors]
    return Attribution(layer, *host)


def _cut_graph(layer: TargetLayer, held: dict[TargetLayer, Tensor]) -> Hooks:
    """Hook the layer so that the autograd graph is cut there, until the returned hooks are closed.

    `held` gets the layer's tensor, as a leaf. The model continues with a copy, which may be changed in place.
    """
    calls = itertools.count()

    def cut(value: Any) -> Any:
        first = next((t for _, t in tensors_in(value) if t.is_floating_point()), None)
        if next(calls) != layer.number or first is None:
            return None
        held[layer] = first.detach().requires_grad_()
        copy = held[layer].clone()
        return map_tensors(lambda tensor: copy if tensor is first else tensor, value)

    if layer.is_input:
        return hooked(layer.module, lambda _, args, kwargs: cut((args, kwargs)))
    return hooked(layer.module, after=lambda _, args, output: cut(output))
