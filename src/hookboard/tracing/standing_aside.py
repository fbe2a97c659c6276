"""`standing_aside`: keeps a trace from disturbing what torch does differently while a torch function mode is there.

All functions of torch that are replaced while the first step is followed are replaced here. A replacement is taken back
unless code other than ours has replaced it since; then it stays below, and does nothing once the trace is over. Each
calls the one below it by `__wrapped__`, so that traces may end in any order.
"""

import functools
import inspect
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from hookboard.base.torch_private import COMPILED_CALLERS, COMPILED_CODE
from hookboard.measure import around_measuring, hearing_backward
from hookboard.tracing.program import StepTrace

_HERE = os.path.abspath(__file__)


@contextmanager
def standing_aside(
    trace: StepTrace, at_backward: Callable[[Tensor], object], at_step: Callable[[Any, bool], object]
) -> Iterator[None]:
    """Take a trace off the stack inside the context where it would change what runs.

    That is in compiled code, which would be compiled with the trace in it; in the steps of optimizers; in backward
    passes; and where torch asks whether there is a mode, because layers in evaluation mode then take a slower way with
    other rounding.

    Args:
        trace: the trace. Its `compiled_calls` counts the calls of compiled code.
        at_backward: called with each loss whose backward pass begins.
        at_step: called with each optimizer that steps, before it does, and whether it is given a closure; with None
            after it.
    """

    def hears(backward: Callable[[], None], losses: Sequence[Tensor]) -> None:
        if not trace.is_over:
            for loss in losses:
                at_backward(loss)
        with trace.aside():
            backward()

    with ExitStack() as until_end:
        # What taps measure in the middle of the step is no part of it.
        around_measuring.append(apart := trace.aside())
        until_end.callback(around_measuring.remove, apart)
        until_end.enter_context(hearing_backward(hears))
        until_end.enter_context(_replaced(torch.overrides, "has_torch_function", functools.partial(_unseen, trace)))
        without_hooks = until_end.enter_context(_around_optimizers(trace, at_step))
        until_end.enter_context(_replaced(*COMPILED_CODE, functools.partial(_around_compiled, trace, without_hooks)))
        yield


@contextmanager
def _replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Replace a function by what `make` makes of it."""
    real = getattr(owner, name)
    made = make(real)
    setattr(owner, name, made)
    try:
        yield
    finally:
        # Something else may stand there now, put by another trace or library: then ours is taken out from below it.
        now = getattr(owner, name)
        below = made.__wrapped__ if _is_ours(made) else real
        if now is made:
            setattr(owner, name, below)
        while _is_ours(now) and _is_ours(made):  # of another trace, which ends later
            if now.__wrapped__ is made:
                now.__wrapped__ = below
            now = now.__wrapped__


def _is_ours(function: Any) -> bool:
    return inspect.isfunction(function) and function.__code__.co_filename == _HERE


def _unseen(trace: StepTrace, real: Callable[[Any], bool]) -> Callable[[Any], bool]:
    @functools.wraps(real)
    def told(relevant: Any) -> bool:
        if torch.compiler.is_compiling():  # of another thread; see `_around_compiled`
            return real(relevant)
        with trace.aside():
            return bool(told.__wrapped__(relevant))

    return told


def _around_compiled(
    trace: StepTrace, without_hooks: Callable[[], AbstractContextManager[None]], real: Callable[[Any], Any]
) -> Callable[[Any], Any]:
    running: list[Any] = []  # the frame that runs compiled code; code inside of it begins and ends in between
    aside = ExitStack()

    @functools.wraps(real)
    def told(callback: Any) -> Any:
        frame = inspect.currentframe()
        while frame is not None and frame.f_code.co_filename == _HERE:  # there may be several traces
            frame = frame.f_back
        if frame is not None and threading.get_ident() == trace.thread and frame.f_code.co_name in COMPILED_CALLERS:
            if not running and callable(callback):
                running.append(frame)
                trace.compiled_calls += 1
                aside.enter_context(trace.aside())
                # What is replaced would be compiled too.
                aside.enter_context(without_hooks())
                aside.enter_context(_replaced(torch.overrides, "has_torch_function", inspect.unwrap))
            elif running and running[0] is frame:
                running.clear()
                aside.close()
        return told.__wrapped__(callback)

    return told


@contextmanager
def _around_optimizers(
    trace: StepTrace, at_step: Callable[[Any, bool], object]
) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Take the trace off while an optimizer steps, unless it is given a closure, which runs the model.

    It yields a function that returns a context without the hooks for this.
    """
    aside = ExitStack()
    stepping: list[Any] = []

    def before(optimizer: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling():
            return  # the hook is traced, not called
        has_closure = len(args) > 1 or kwargs.get("closure") is not None
        if threading.get_ident() == trace.thread and not trace.is_over:
            at_step(optimizer, has_closure)
        if threading.get_ident() == trace.thread and not has_closure and not stepping:
            stepping.append(optimizer)
            aside.enter_context(trace.aside())

    def after(optimizer: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        if threading.get_ident() == trace.thread and not trace.is_over and not torch.compiler.is_compiling():
            at_step(None, False)
        if stepping and stepping[0] is optimizer:
            stepping.clear()
            aside.close()

    hooks = ExitStack()

    def put() -> None:
        for handle in (register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)):
            hooks.callback(handle.remove)

    @contextmanager
    def without() -> Iterator[None]:
        hooks.close()
        try:
            yield
        finally:
            if not trace.is_over:
                put()

    put()
    try:
        yield without
    finally:
        hooks.close()
        aside.close()
