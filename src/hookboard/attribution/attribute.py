"""A layer's output for a few samples, and the gradient of a class's score with respect to it."""

import itertools
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hookboard.attribution.classification import Classification, scores_in
from hookboard.attribution.layers import Layer
from hookboard.nested import map_tensors, tensors_in
from hookboard.ranks import whole
from hookboard.replay import undisturbed


@dataclass(frozen=True)
class Attribution:
    """A layer's output for some samples, and how the class scores depend on it.

    Args:
        activation: the layer's output, shape (n, channels, height, width) or (n, tokens, channels).
        gradient: the gradient of each sample's class score with respect to `activation`, same shape; None if it was
            not asked for.
        scores: the class scores, shape (n, number of classes).
        classes: the class that is explained, for each sample, shape (n,).
        pooled: the input of the last linear layer, shape (n, features); None if the model has no linear layer.
        weight: the weights of that layer for each sample's class, shape (n, features); None if the scores are not its
            output.
    """

    activation: Tensor
    gradient: Tensor | None
    scores: Tensor
    classes: Tensor
    pooled: Tensor | None
    weight: Tensor | None


def attribute(
    call: Classification, layer: Layer, choose: Callable[[Tensor], Tensor], *, with_gradient: bool
) -> Attribution:
    """Call the model once more on the few samples and read a layer's output, and its gradient if asked.

    The modes of the modules (training or evaluation) are not changed. Attached edits apply. The call leaves no trace,
    see `undisturbed`.

    Args:
        call: the module to call, and its arguments.
        layer: the layer to read.
        choose: takes the scores, shape (n, classes), and returns the class of each sample, shape (n,).
        with_gradient: whether the gradient is computed.

    Raises:
        ValueError: the layer was not called, or the scores do not depend on it.
    """
    linear = [c.module for c in call.calls if isinstance(c.module, nn.Linear)]
    held: dict[int, Tensor] = {}
    pooled: list[Tensor] = []
    with undisturbed(call.module):
        with ExitStack() as hooks:
            hooks.enter_context(_hold(layer, held))
            if linear:
                keep = linear[-1].register_forward_pre_hook(lambda _, args: pooled.append(args[0].detach()))
                hooks.enter_context(keep)
            output = call.module(*call.args, **call.kwargs)
        if layer.number not in held:
            raise ValueError(f"module {layer.name!r} was not called, or without a floating-point tensor")
        scores = scores_in(output, call.count)
        if scores is None:
            raise ValueError("the model did not return class scores again")
        classes = choose(scores.detach())
        gradient = _gradient(scores, classes, held[layer.number], layer.name) if with_gradient else None
        is_head = bool(linear) and len(linear[-1].weight) == scores.shape[1]
        weight = whole(linear[-1].weight.detach())[classes] if is_head else None
    activation, scores = held[layer.number].detach(), scores.detach()
    return Attribution(activation, gradient, scores, classes, pooled[-1] if pooled else None, weight)


def _gradient(scores: Tensor, classes: Tensor, held: Tensor, name: str) -> Tensor:
    score = scores.gather(1, classes[:, None]).sum()
    gradient = torch.autograd.grad(score, held, allow_unused=True)[0] if score.requires_grad else None
    if gradient is None:
        raise ValueError(f"the class scores do not depend on module {name!r}, or it runs under torch.no_grad()")
    return gradient


def _hold(layer: Layer, held: dict[int, Tensor]) -> RemovableHandle:
    """Cut the graph at the layer: the model continues with a copy, which may be changed in place, and has gradients."""
    calls = itertools.count()

    def cut(value: Any) -> Any:
        first = next((t for _, t in tensors_in(value) if t.is_floating_point()), None)
        if next(calls) != layer.number or first is None:
            return None
        held[layer.number] = first.detach().requires_grad_()
        return _exchange(value, first, held[layer.number].clone())

    if layer.is_input:
        return layer.module.register_forward_pre_hook(lambda _, args, kwargs: cut((args, kwargs)), with_kwargs=True)
    return layer.module.register_forward_hook(lambda _, args, output: cut(output))


def _exchange(value: Any, old: Tensor, new: Tensor) -> Any:
    return map_tensors(lambda tensor: new if tensor is old else tensor, value)
