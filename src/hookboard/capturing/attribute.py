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
    """One call of a module inside the classifier; a shape is () if there is no tensor, or a nested one."""

    name: str
    module: nn.Module
    given: Shape  # of the first tensor among its arguments
    returned: Shape  # of the first tensor that it returned


@dataclass(frozen=True)
class Classification:
    """A call that turned pictures into class scores."""

    module: nn.Module
    pictures: Tensor  # those among its arguments, shape (n, channels, height, width)
    args: tuple[Any, ...]  # copies, of the first samples only
    kwargs: dict[str, Any]
    calls: Sequence[InnerCall]  # of modules inside it, in the order in which they ended
    of: int  # how many samples the batch has


class ClassificationTap:
    """Hooks the modules of a model (of no copy) to find the outermost call that turns pictures into class scores."""

    def __init__(self, model: nn.Module, samples: int) -> None:
        self.found: Classification | None = None  # None until there is one
        self.error: Exception | None = None  # of the hooks, which then do nothing; it never reaches the model
        self._model = model
        self._samples = samples
        self._hooks = ExitStack()
        self._running: list[tuple[int, Any, Any]] = []  # calls ended before it, kept arguments, own `forward`
        self._calls: list[InnerCall] = []
        self._depth_of_found = 0

    def attach(self) -> None:
        """Start to watch the calls of the modules of the model."""
        around = layers_around(self._model)
        for name, module in [("", self._model), *named_submodules(self._model)]:
            is_fused = id(module) in around and not around[id(module)].training
            if is_fused or isinstance(module, torch.jit.ScriptModule):  # a hook would change what torch computes
                continue
            before = functools.partial(self._guarded, self._enter)
            after = functools.partial(self._guarded, self._leave, name)
            # Arguments are kept as they were before any edit, because a repeated call is edited again.
            hooks = hooked(module, before, after, place=READS_BEFORE_EDITS, with_kwargs=True, always_call=True)
            self._hooks.enter_context(hooks)

    def detach(self) -> None:
        """Remove every hook."""
        self._hooks.close()

    def _guarded(self, act: Callable[..., None], *arguments: Any) -> None:
        if self.error is None and not is_own_call():
            try:
                act(*arguments)
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


def _pictures_in(value: object) -> Tensor | None:
    """Return the first tensor of shape (n, channels, height, width) with at most MAX_PICTURE_CHANNELS channels."""
    fours = (t for _, t in tensors_in(value) if not t.is_nested and t.ndim == 4)
    return next((t for t in fours if len(t) and t.shape[1] <= MAX_PICTURE_CHANNELS), None)


def _first_shape(value: object) -> Shape:
    return next((shape_of(tensor) or () for _, tensor in tensors_in(value)), ())


def scores_in(output: object, count: int) -> Tensor | None:
    """Return class scores in an output: floating, of shape (count, classes), or (count,), made two classes; or None.

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
    """Return the layers of which the last that the scores depend on is explained if the user names none."""
    calls = seen.calls
    attention = max((k for k, call in enumerate(calls) if _is_attention(call)), default=-1)
    convolutions = (k for k, call in enumerate(calls) if isinstance(call.module, nn.Conv2d))
    # The last convolution, with later maps of its height and width: normalization, ReLU and the modules around them.
    start = max((k for k in convolutions if math.prod(calls[k].returned[2:]) > 1), default=len(calls))
    group = [k for k in range(start, len(calls)) if calls[k].returned[2:] == calls[start].returned[2:]]
    is_input = attention > max(group, default=-1)
    if is_input:  # of a transformer: after its last attention the scores may depend on the class token alone
        group = [attention]
    if not group:
        raise ValueError("no module returned maps larger than one pixel: name a layer with `modules`")
    return [TargetLayer(calls[k].name, calls[k].module, _number(calls, k), is_input) for k in group]


def _is_attention(call: InnerCall) -> bool:
    is_one = isinstance(call.module, nn.TransformerEncoderLayer) or "attention" in type(call.module).__name__.lower()
    return is_one and len(call.given) in (3, 4)


def named_layer(calls: Sequence[InnerCall], name: str) -> TargetLayer:
    """Return the `TargetLayer` for a module: its output in the last of its calls that returned maps or tokens."""
    for k, call in reversed(list(enumerate(calls))):
        if call.name == name and len(call.returned) in (3, 4):
            return TargetLayer(name, call.module, _number(calls, k))
    raise ValueError(f"module {name!r} returned neither maps of shape (n, channels, height, width) nor tokens")


def _number(calls: Sequence[InnerCall], k: int) -> int:
    """Return which of its module's calls the k-th call is, counted from 0."""
    return sum(call.module is calls[k].module for call in calls[:k])


@dataclass(frozen=True)
class Attribution:
    """The output of a target layer for some samples (with `is_input` its first input) and its gradient, on the host."""

    layer: TargetLayer
    activation: Tensor  # such as shape (n, channels, height, width) or (n, tokens, channels)
    gradient: Tensor | None  # of each sample's class score with respect to `activation`; None if not asked for
    scores: Tensor  # shape (n, classes)
    classes: Tensor
    pooled: Tensor | None  # the input of the last linear layer, shape (n, features) in most classifiers
    weight: Tensor | None  # that layer's, for each sample's class; None if it has not one output for each class


def attribute(
    call: Classification,
    layers: Sequence[TargetLayer],
    choose: Callable[[Tensor], Tensor],  # from scores, shape (n, classes), to the class of each sample
    *,
    with_gradient: bool,
) -> Attribution:
    """Call the model once more on the kept samples, for the last of the layers: its tensor, its gradient if asked."""
    linear = [c.module for c in call.calls if isinstance(c.module, nn.Linear)]
    activations: dict[TargetLayer, Tensor] = {}
    pooled: list[Tensor] = []
    with undisturbed(call.module), ExitStack() as hooks:  # modes and edits stay as they are
        for layer in layers:
            hooks.enter_context(_cut_graph(layer, activations))
        if linear:
            hooks.enter_context(hooked(linear[-1], lambda _, args, kwargs: pooled.append(args[0])))
        scores = scores_in(call.module(*call.args, **call.kwargs), len(call.pictures))
        assert scores is not None, "the model returned class scores before"
        classes = choose(scores.detach())
        gradients: Sequence[Tensor | None] = [None] * len(activations)
        if with_gradient and scores.requires_grad and activations:
            score = scores.gather(1, classes[:, None]).sum()
            gradients = torch.autograd.grad(score, [*activations.values()], allow_unused=True)
        weight = _for_classes(whole(linear[-1].weight), 0) if linear else None
    read = [pair for pair in zip(activations, gradients, strict=True) if pair[1] is not None or not with_gradient]
    if not read:
        raise ValueError(
            f"the class scores do not depend on the first tensor that module {layers[-1].name!r} "
            f"{'took' if layers[-1].is_input else 'returned'}, or it runs under torch.no_grad(): name another with "
            "`modules`"
        )
    layer, gradient = read[-1]  # with a gradient, the last that the scores depend on
    of_classes = weight[classes] if weight is not None and len(weight) == scores.shape[1] else None
    tensors = activations[layer], gradient, scores, classes, pooled[-1] if pooled else None, of_classes
    host: list[Any] = [None if tensor is None else tensor.detach().cpu() for tensor in tensors]
    return Attribution(layer, *host)


def _cut_graph(layer: TargetLayer, activations: dict[TargetLayer, Tensor]) -> Hooks:
    """Hook the layer so that the autograd graph is cut there; `activations` gets its tensor, as a leaf."""
    calls = itertools.count()

    def cut(value: Any) -> Any:
        first = next((t for _, t in tensors_in(value) if t.is_floating_point()), None)
        if next(calls) != layer.number or first is None:
            return None
        activations[layer] = first.detach().requires_grad_()
        copy = activations[layer].clone()  # the model may change it in place
        return map_tensors(lambda tensor: copy if tensor is first else tensor, value)

    if layer.is_input:
        return hooked(layer.module, lambda _, args, kwargs: cut((args, kwargs)))
    return hooked(layer.module, after=lambda _, args, output: cut(output))
