"""Finds the module of a model that turns pictures into class scores, and keeps its arguments."""

import functools
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hookboard.hooks import READS_BEFORE_EDITS, fused_layers, is_own_call
from hookboard.layouts import shape_of
from hookboard.nested import map_tensors, tensors_in
from hookboard.selection import named_submodules
from hookboard.torch_private import Detour

Shape = tuple[int, ...]

MOST_CHANNELS = 16
"""The most channels that a picture may have, spectral bands included; a tensor with more is a feature map."""


@dataclass(frozen=True)
class Call:
    """One call of a module.

    Args:
        name: the module's dotted name.
        module: the module itself.
        given: the shape of the first tensor among its arguments; () if it took none.
        returned: the shape of the first tensor that it returned; () if it returned none.
    """

    name: str
    module: nn.Module
    given: Shape
    returned: Shape


@dataclass(frozen=True)
class Classification:
    """A call that turned pictures of shape (n, channels, height, width) into class scores.

    Args:
        module: the module that was called.
        args: its positional arguments, copied, for the first samples alone.
        kwargs: its keyword arguments, in the same way.
        calls: the calls of the modules inside it, in the order in which they ended.
        count: the number of samples in `args` and `kwargs`.
        of: the number of samples in the batch.
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
    """Hooks on all modules of a model that look for the outermost call that turns pictures into class scores.

    They ignore calls of our own. The arguments are kept as they were before any edit, because a repeated call is edited
    again. An error in the hooks never reaches the model: it is kept in `error`, and the hooks then do nothing. If the
    model is copied or saved meanwhile, the hooks of the copy do nothing.

    Args:
        model: the model to watch.
        samples: how many samples of the call's arguments are kept.
    """

    place_among_hooks = READS_BEFORE_EDITS

    def __init__(self, model: nn.Module, samples: int) -> None:
        self.found: Classification | None = None
        self.error: Exception | None = None
        self._model = model
        self._samples = samples
        self._hooks = ExitStack()
        self._running = _Running()
        self._depth_of_found = 0
        self._is_on = False

    def __reduce__(self) -> tuple[Any, ...]:
        return ClassificationTap, (nn.Module(), self._samples)

    def attach(self) -> None:
        """Hook every module."""
        self._is_on = True
        inside_fused = {id(module) for layer in fused_layers(self._model) for module in layer}
        for name, module in [("", self._model), *named_submodules(self._model)]:
            if isinstance(module, torch.jit.ScriptModule):
                continue
            if id(module) in inside_fused:  # where a hook would change what torch computes
                self._hooks.callback(Detour(module, _nothing, functools.partial(self._note, name)).end)
                continue
            before = module.register_forward_pre_hook(self._before, with_kwargs=True, prepend=True)
            after = module.register_forward_hook(
                functools.partial(self._after, name), with_kwargs=True, always_call=True
            )
            self._hooks.enter_context(before)
            self._hooks.enter_context(after)

    def detach(self) -> None:
        """Remove every hook."""
        self._is_on = False
        self._hooks.close()

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._is_watching():
            try:
                pictures = _pictures_in((args, kwargs))
                count = 0 if pictures is None else len(pictures)
                given = self._first_samples((args, kwargs), count) if count else None
                entered = _Entered(len(self._running.calls), count, given, module.__dict__.get("forward"))
                self._running.entered.append(entered)
            except Exception as error:
                self.error = error

    def _first_samples(self, given: Any, count: int) -> Any:
        def first(tensor: Tensor) -> Tensor:
            return tensor[: self._samples].clone() if tensor.ndim and len(tensor) == count else tensor

        # What is made under inference_mode could not be saved for a gradient.
        with torch.inference_mode(False):
            return map_tensors(first, given)

    def _after(self, name: str, module: nn.Module, args: Any, kwargs: Any, output: object) -> None:
        if self._is_watching():
            try:
                self._leave(name, module, (args, kwargs), output)
            except Exception as error:
                self.error = error

    def _note(self, name: str, module: nn.Module, args: Any, kwargs: Any, output: object) -> None:
        """Note a call of a module that is no classifier of pictures, because it is inside a transformer's layer."""
        if self._is_watching():
            self._append(name, module, (args, kwargs), output)

    def _append(self, name: str, module: nn.Module, given: Any, output: object) -> None:
        self._running.calls.append(Call(name, module, _first_shape(given), _first_shape(output)))

    def _is_watching(self) -> bool:
        return self._is_on and self.error is None and not is_own_call()

    def _leave(self, name: str, module: nn.Module, given: Any, output: object) -> None:
        running = self._running
        entered = running.entered.pop()
        self._append(name, module, given, output)
        depth, count = len(running.entered), entered.count
        is_outer = self.found is None or depth < self._depth_of_found
        # Under DDP Lightning calls the module with another `forward`, which puts the old one back and runs the step.
        is_redirected = module.__dict__.get("forward") is not entered.forward
        if count and is_outer and not is_redirected and scores_in(output, count) is not None:
            self._depth_of_found = depth
            args, kwargs = entered.first_samples
            kept, calls = min(count, self._samples), running.calls[entered.start :]
            self.found = Classification(module, args, kwargs, calls, kept, count)


def _nothing(*_: object) -> None:
    pass


@dataclass(frozen=True)
class _Entered:
    """A call that runs.

    Args:
        start: how many calls had ended before it.
        count: the number of pictures in its arguments; 0 if there are none.
        first_samples: its positional and keyword arguments for the first samples; None if there are no pictures.
        forward: what the module itself, not its class, had as `forward`.
    """

    start: int
    count: int
    first_samples: Any
    forward: object


class _Running(threading.local):
    """The calls that run in this thread, the innermost last, and those that have ended."""

    def __init__(self) -> None:
        self.entered: list[_Entered] = []
        self.calls: list[Call] = []


def _pictures_in(given: object) -> Tensor | None:
    """The first tensor of shape (n, channels, height, width) with at most MOST_CHANNELS channels."""
    return next(
        (t for _, t in tensors_in(given) if not t.is_nested and t.ndim == 4 and t.shape[1] <= MOST_CHANNELS), None
    )


def _first_shape(value: object) -> Shape:
    return next((shape_of(tensor) or () for _, tensor in tensors_in(value)), ())


def scores_in(output: object, count: int) -> Tensor | None:
    """The class scores in what a model returned: the tensor of shape (count, classes) named so, or the first one.

    Args:
        output: what the model returned.
        count: the number of samples.

    Returns:
        Shape (count, classes), or None if there are none. A model with one score per sample has two classes: class 1
        has the score, class 0 its negative.
    """
    found = {
        path: t
        for path, t in tensors_in(output)
        if not t.is_nested and t.ndim == 2 and len(t) == count and t.is_floating_point()
    }
    named = [t for path, t in found.items() if path.rpartition("/")[2] in ("logits", "scores")]
    scores = next(iter([*named, *found.values()]), None)
    return torch.cat([-scores, scores], dim=1) if scores is not None and scores.shape[1] == 1 else scores
