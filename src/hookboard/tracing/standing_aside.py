"""`StandingAside`: keeps a trace from disturbing what torch does differently while a torch function mode is there.

All functions of torch that are replaced while the first step is followed are replaced here. A replacement is taken back
unless other code has replaced it since; then it stays below, and does nothing once the trace is over.
"""

import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from hookboard.base.torch_private import COMPILED_CALLERS, COMPILED_CODE, remove_step_hooks
from hookboard.measure.backward_calls import hear_backward, unhear_backward
from hookboard.tracing.program import NotReadError, StepTrace

_standing: "list[StandingAside]" = []
"""The one between `put` and `close`, if there is any: two traces would hide calls from each other."""


class StandingAside:
    """Takes a trace off the stack, between `put` and `close`, where it would change what runs.

    That is in compiled code, which would be compiled with the trace in it; in the steps of optimizers; in backward
    passes; and where torch asks whether there is a mode, because layers in evaluation mode then take a slower way with
    other rounding.

    Args:
        trace: the trace. Its `compiled_calls` counts the calls of compiled code.
        at_backward: called with each loss whose backward pass begins.
        at_step: called with each optimizer that steps, before it does, and whether it is given a closure; with None
            after it.
    """

    def __init__(
        self, trace: StepTrace, at_backward: Callable[[Tensor], object], at_step: Callable[[Any, bool], object]
    ) -> None:
        self._trace, self._at_backward, self._at_step = trace, at_backward, at_step
        self._asking = Replaced(torch.overrides, "has_torch_function", functools.partial(_unseen, trace))
        self._replaced = [self._asking, Replaced(*COMPILED_CODE, self._around_compiled)]
        self._stepping: list[Any] = []
        self._until_stepped = ExitStack()

    def put(self) -> None:
        """Begin; `close` takes back what is there, whatever ends this in the middle.

        Raises:
            NotReadError: another one has begun.
        """
        if _standing:
            raise NotReadError("another HealthMonitor inspects it")
        _standing.append(self)
        hear_backward(self._hear)
        self._hook()
        for one in self._replaced:
            one.put()

    def close(self) -> None:
        """End; a call after an interrupted one takes back the rest."""
        unhear_backward(self._hear)
        for one in reversed(self._replaced):
            one.take_back()
        self._unhook()
        self._until_stepped.close()
        _standing[:] = [one for one in _standing if one is not self]

    def _hear(self, backward: Callable[[], None], losses: Sequence[Tensor]) -> None:
        if not self._trace.is_over:
            for loss in losses:
                self._at_backward(loss)
        with self._trace.aside():
            backward()

    def _around_compiled(self, real: Callable[[Any], Any]) -> Callable[[Any], Any]:
        trace, aside = self._trace, ExitStack()
        running: list[Any] = []  # the frame that runs compiled code; code inside of it begins and ends in between

        @functools.wraps(real)
        def told(callback: Any) -> Any:
            here = inspect.currentframe()
            frame = here and here.f_back
            if frame and threading.get_ident() == trace.thread and frame.f_code.co_name in COMPILED_CALLERS:
                if not running and callable(callback) and not trace.is_over:
                    running.append(frame)
                    trace.compiled_calls += 1
                    aside.enter_context(trace.aside())
                    aside.enter_context(self._away())
                elif running and running[0] is frame:
                    running.clear()
                    aside.close()
            return real(callback)

        return told

    # The trace is off the stack while an optimizer steps, unless it is given a closure, which runs the model.

    def _before(self, optimizer: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling():
            return  # the hook is traced, not called
        has_closure = len(args) > 1 or kwargs.get("closure") is not None
        if threading.get_ident() == self._trace.thread and not self._trace.is_over:
            self._at_step(optimizer, has_closure)
        if threading.get_ident() == self._trace.thread and not has_closure and not self._stepping:
            self._stepping.append(optimizer)
            self._until_stepped.enter_context(self._trace.aside())

    def _after(self, optimizer: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        is_here = threading.get_ident() == self._trace.thread
        if is_here and not self._trace.is_over and not torch.compiler.is_compiling():
            self._at_step(None, False)
        if self._stepping and self._stepping[0] is optimizer:
            self._stepping.clear()
            self._until_stepped.close()

    def _hook(self) -> None:
        register_optimizer_step_pre_hook(self._before)
        register_optimizer_step_post_hook(self._after)

    def _unhook(self) -> None:
        remove_step_hooks(self._before, self._after)

    @contextmanager
    def _away(self) -> Iterator[None]:
        """Take back what would be compiled too."""
        self._unhook()
        self._asking.take_back()
        try:
            yield
        finally:
            if not self._trace.is_over:
                self._hook()
                self._asking.put()


class Replaced:
    """Between `put` and `take_back`, a function is replaced by what `make` makes of it."""

    def __init__(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        self._owner, self._name = owner, name
        self._real = getattr(owner, name)
        self._made = make(self._real)

    def put(self) -> None:
        """Replace the function."""
        setattr(self._owner, self._name, self._made)

    def take_back(self) -> None:
        """Put it back, if it is still replaced by ours."""
        if getattr(self._owner, self._name) is self._made:
            setattr(self._owner, self._name, self._real)


def _unseen(trace: StepTrace, real: Callable[[Any], bool]) -> Callable[[Any], bool]:
    @functools.wraps(real)
    def told(relevant: Any) -> bool:
        if torch.compiler.is_compiling():  # of another thread; see `_around_compiled`
            return real(relevant)
        with trace.aside():
            return real(relevant)

    return told
