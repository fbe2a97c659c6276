"""Finds the module of a model that turns pictures into class scores, and keeps its arguments."""

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hookboard.hooks import is_own_call
from hookboard.nested import map_tensors, tensors_in
from hookboard.selection import named_submodules

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
    again. An error in the hooks never reaches the model: it is kept in `error`, and the hooks then do nothing.

    Args:
        model: the model to watch.
        samples: how many samples of the call's arguments are kept.
    """

    reads_before_edits = True

    def __init__(self, model: nn.Module, samples: int) -> None:
        self.found: Classification | None = None
        self.error: Exception | None = None
        self._model = model
        self._samples = samples
        self._hooks = ExitStack()
        self._running = _Running()
        self._depth_of_found = 0

    def attach(self) -> None:
        """Hook every module."""
        for name, module in [("", self._model), *named_submodules(self._model)]:
            if isinstance(module, torch.jit.ScriptModule):
                continue
            before = module.register_forward_pre_hook(self._before, with_kwargs=True, prepend=True)
            after = module.register_forward_hook(self._after(name), with_kwargs=True, always_call=True)
            self._hooks.enter_context(before)
            self._hooks.enter_context(after)

    def detach(self) -> None:
        """Remove every hook."""
        self._hooks.close()

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.error is None and not is_own_call():
            try:
                pictures = _pictures_in((args, kwargs))
                count = 0 if pictures is None else len(pictures)
                given = self._first_samples((args, kwargs), count) if count else None
                self._running.entered.append((len(self._running.calls), count, given))
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
            if self.error is None and not is_own_call():
                try:
                    self._leave(name, module, (args, kwargs), output)
                except Exception as error:
                    self.error = error

        return after

    def _leave(self, name: str, module: nn.Module, given: Any, output: object) -> None:
        entered, calls = self._running.entered, self._running.calls
        start, count, first = entered.pop()
        calls.append(Call(name, module, _first_shape(given), _first_shape(output)))
        depth = len(entered)
        is_outer = self.found is None or depth < self._depth_of_found
        # Under DDP Lightning has `forward` run the validation step, for the time of one call.
        is_redirected = "forward" in module.__dict__
        if count and is_outer and not is_redirected and scores_in(output, count) is not None:
            self._depth_of_found = depth
            args, kwargs = first
            kept = min(count, self._samples)
            self.found = Classification(module, args, kwargs, calls[start:], kept, count)


class _Running(threading.local):
    """The calls that run in this thread, the innermost last, and those that have ended."""

    def __init__(self) -> None:
        self.entered: list[tuple[int, int, Any]] = []
        self.calls: list[Call] = []


def _pictures_in(given: object) -> Tensor | None:
    """The first tensor of shape (n, channels, height, width) with at most MOST_CHANNELS channels."""
    return next((t for _, t in tensors_in(given) if t.ndim == 4 and t.shape[1] <= MOST_CHANNELS), None)


def _first_shape(value: object) -> Shape:
    return next((tuple(tensor.shape) for _, tensor in tensors_in(value)), ())


def scores_in(output: object, count: int) -> Tensor | None:
    """The class scores in what a model returned: the tensor of shape (count, classes) named so, or the first one.

    Args:
        output: what the model returned.
        count: the number of samples.

    Returns:
        Shape (count, classes), or None if there are none. A model with one score per sample has two classes: class 1
        has the score, class 0 its negative.
    """
    found = {path: t for path, t in tensors_in(output) if t.ndim == 2 and len(t) == count and t.is_floating_point()}
    named = [t for path, t in found.items() if path.rpartition("/")[2] in ("logits", "scores")]
    scores = next(iter([*named, *found.values()]), None)
    return torch.cat([-scores, scores], dim=1) if scores is not None and scores.shape[1] == 1 else scores
