"""What a layer returned for a few samples, and the gradient of a class's score with respect to it."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hookboard.attribution.undisturbed import undisturbed
from hookboard.nested import map_tensors, tensors_in
from hookboard.ranks import whole
from hookboard.selection import named_submodules

Shape = tuple[int, ...]

MOST_CHANNELS = 16
"""Of a picture, one of many spectral bands among them; what has more is a feature map."""


@dataclass(frozen=True)
class Call:
    """One call of a module: the shapes of the first tensors that it took and returned, () where there was none."""

    name: str
    module: nn.Module
    given: Shape
    returned: Shape


@dataclass(frozen=True)
class Classification:
    """A call that turned pictures of shape (n, channels, height, width) into class scores.

    Args:
        module: what was called.
        args: its arguments for the first samples, in copies.
        kwargs: the same.
        calls: those of the modules within it, in the order in which they ended.
        count: how many samples there are.
        of: how many there were in the batch.
    """

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    calls: Sequence[Call]
    count: int
    of: int

    @property
    def pictures(self) -> Tensor:
        """Shape (n, channels, height, width)."""
        pictures = _pictures_in((self.args, self.kwargs))
        assert pictures is not None
        return pictures


class ClassificationTap:
    """Hooks on all modules of a model, which look for the outermost call that turns pictures into class scores.

    Args:
        model: what is to be called.
        samples: how many samples are kept of the call's arguments.

    A fault in its hooks never reaches the model: it is kept in `error`, and the hooks do no more.
    """

    def __init__(self, model: nn.Module, samples: int) -> None:
        self.found: Classification | None = None
        self.error: Exception | None = None
        self._model = model
        self._samples = samples
        self._handles: list[RemovableHandle] = []
        self._entered: list[tuple[int, int, Any]] = []
        self._calls: list[Call] = []
        self._depth_of_found = 0

    def attach(self) -> None:
        """Hook every module."""
        for name, module in [("", self._model), *named_submodules(self._model)]:
            if isinstance(module, torch.jit.ScriptModule):
                continue
            before = module.register_forward_pre_hook(self._before, with_kwargs=True)
            after = module.register_forward_hook(self._after(name), with_kwargs=True, always_call=True)
            self._handles += [before, after]

    def detach(self) -> None:
        """Remove every hook."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.error is None:
            try:
                pictures = _pictures_in((args, kwargs))
                count = 0 if pictures is None else len(pictures)
                given = self._first_samples((args, kwargs), count) if count else None
                self._entered.append((len(self._calls), count, given))
            except Exception as error:
                self.error = error

    def _first_samples(self, given: Any, count: int) -> Any:
        def first(tensor: Tensor) -> Tensor:
            return tensor[: self._samples].clone() if tensor.ndim and len(tensor) == count else tensor

        # What is made under inference_mode could not be saved for a gradient.
        with torch.inference_mode(False):
            return map_tensors(first, given)

    def _after(self, name: str) -> Callable[..., None]:
        def after(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: object) -> None:
            if self.error is None:
                try:
                    self._leave(name, module, (args, kwargs), output)
                except Exception as error:
                    self.error = error

        return after

    def _leave(self, name: str, module: nn.Module, given: Any, output: object) -> None:
        start, count, first = self._entered.pop()
        self._calls.append(Call(name, module, _first_shape(given), _first_shape(output)))
        depth = len(self._entered)
        is_outer = self.found is None or depth < self._depth_of_found
        # Under DDP Lightning has `forward` run the validation step, for the time of one call.
        is_redirected = "forward" in module.__dict__
        if count and is_outer and not is_redirected and _scores_in(output, count) is not None:
            self._depth_of_found = depth
            args, kwargs = first
            kept = min(count, self._samples)
            self.found = Classification(module, args, kwargs, self._calls[start:], kept, count)


def _pictures_in(given: object) -> Tensor | None:
    """The first tensor of shape (n, channels, height, width) with few enough channels for a picture."""
    return next((t for _, t in tensors_in(given) if t.ndim == 4 and t.shape[1] <= MOST_CHANNELS), None)


def _first_shape(value: object) -> Shape:
    return next((tuple(tensor.shape) for _, tensor in tensors_in(value)), ())


def _scores_in(output: object, count: int) -> Tensor | None:
    """The class scores in what a model returned: of its tensors of shape (count, classes) one named so, or the first.

    Scores for one class alone are those for it, and, with their signs changed, those against it.
    """
    found = {path: t for path, t in tensors_in(output) if t.ndim == 2 and len(t) == count and t.is_floating_point()}
    named = [t for path, t in found.items() if path.rpartition("/")[2] in ("logits", "scores")]
    scores = next(iter([*named, *found.values()]), None)
    return torch.cat([-scores, scores], dim=1) if scores is not None and scores.shape[1] == 1 else scores


@dataclass(frozen=True)
class Layer:
    """A tensor of maps inside a model: what a module returns, or, of `is_input`, the first tensor that it takes.

    Args:
        name: of the module.
        module: the same.
        number: which of the module's calls.
        is_input: which tensor.
    """

    name: str
    module: nn.Module
    number: int = 0
    is_input: bool = False


def last_layer(calls: Sequence[Call]) -> Layer:
    """The last tensor in which places still have a meaning, as class-activation maps want it.

    It is the last that has the size of the last convolution's output, so that what normalizes and rectifies it is in
    it. In a transformer it is what its last attention takes: behind that only the class token may count.

    Raises:
        ValueError: no module of the model returned maps.
    """
    convolutions = [
        k for k, call in enumerate(calls) if isinstance(call.module, nn.Conv2d) and math.prod(call.returned[2:]) > 1
    ]
    attentions = [
        k
        for k, call in enumerate(calls)
        if "attention" in type(call.module).__name__.lower() and len(call.given) in (3, 4)
    ]
    last = -1
    if convolutions:
        size = calls[convolutions[-1]].returned[2:]
        last = max(k for k, call in enumerate(calls) if len(call.returned) == 4 and call.returned[2:] == size)
    if attentions and attentions[-1] > last:
        call = calls[attentions[-1]]
        return Layer(call.name, call.module, _number(calls, attentions[-1]), is_input=True)
    if last < 0:
        raise ValueError("no module of it returned maps with more than one place: name a layer with `modules`")
    return Layer(calls[last].name, calls[last].module, _number(calls, last))


def named_layer(calls: Sequence[Call], name: str) -> Layer:
    """What the module of this name returns in its last call that returns maps.

    Raises:
        ValueError: it returns none.
    """
    for k, call in reversed(list(enumerate(calls))):
        if call.name == name and len(call.returned) in (3, 4):
            return Layer(name, call.module, _number(calls, k))
    raise ValueError(f"module {name!r} returned no maps of shape (n, channels, height, width), and no tokens")


def _number(calls: Sequence[Call], k: int) -> int:
    """Which of its module's calls the k-th call is."""
    return sum(call.module is calls[k].module for call in calls[:k])


@dataclass(frozen=True)
class Attribution:
    """What is known of a layer for some samples.

    Args:
        activation: what the layer returned.
        gradient: of the scores of `classes` with respect to it, each sample's own; None if it was not asked for.
        scores: shape (n, number of classes).
        classes: the class of each sample, shape (n,).
        pooled: what went into the linear layer that made the scores, shape (n, features); None if none did.
        weight: that layer's weights for each sample's class, shape (n, features).
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
    """Call the model once more on the few samples, in the modes that its modules are in, and leave no trace of it.

    Args:
        call: what is called, and with what.
        layer: where to read.
        choose: from the scores, shape (n, classes), to the class of each sample, shape (n,).
        with_gradient: whether the gradient is wanted.

    Raises:
        ValueError: the layer was not called, or the scores do not depend on it.
    """
    linear = [c.module for c in call.calls if isinstance(c.module, nn.Linear)]
    held: dict[int, Tensor] = {}
    pooled: list[Tensor] = []
    with undisturbed(call.module):
        handles = [_hold(layer, held)]
        if linear:
            handles.append(linear[-1].register_forward_pre_hook(lambda _, args: pooled.append(args[0].detach())))
        try:
            output = call.module(*call.args, **call.kwargs)
        finally:
            for handle in handles:
                handle.remove()
        if layer.number not in held:
            raise ValueError(f"module {layer.name!r} took part in no call of the model, or with no tensor")
        scores = _scores_in(output, call.count)
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
    """Cut the graph at the layer: from there on gradients are wanted, and the copy may be changed in place."""
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
