"""Interrupts a training as Ctrl-C does, at any instruction of hookboard's, and what may be left of it afterwards."""

import _thread
import contextlib
import inspect
import os
import signal
import sys
import warnings
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn
from torch._dynamo import eval_frame
from torch.optim import optimizer as optimizers
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack, _pop_mode, _push_mode
from toys import Toy, batches, fit, mlp

import hookboard
from hookboard import HealthMonitor, watch
from hookboard.measure import hooked
from hookboard.measure.hooked import own_calls

OURS = os.path.dirname(inspect.getfile(hookboard))
WITH_THEM = (OURS, inspect.getfile(contextlib))


class _Signal(int):
    """Its attribute `sent` interrupts the main thread, without a call at which Python would look for signals."""

    sent = property(_thread.interrupt_main)


INTERRUPT = _Signal(signal.SIGINT)


class Moments:
    """Counts the instructions of hookboard's code, and of what it calls, and interrupts at one of them.

    The interrupt reaches the code at the next place at which Python looks for signals, as that of a keyboard does.

    Args:
        at: the number of the instruction; None to interrupt none.
    """

    def __init__(self, at: int | None = None) -> None:
        self.at, self.count = at, 0
        self.places: dict[tuple[CodeType, int], int] = {}
        """The first moment at each instruction."""
        self.where = ""

    def begin(self) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # Lightning ignores it once it has heard one
        sys.settrace(self._of_call)

    def end(self) -> None:
        sys.settrace(None)

    def _of_call(self, frame: FrameType, event: str, arg: object) -> Any:
        behind = frame.f_back
        if not frame.f_code.co_filename.startswith(WITH_THEM) and (behind is None or behind.f_trace is None):
            return None
        if frame.f_code.co_name == "__del__":  # Python swallows what is raised there
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        frame.f_trace = self._of_instruction
        return self._of_instruction

    def _of_instruction(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "opcode":
            self.count += 1
            if self.at is None:
                self.places.setdefault((frame.f_code, frame.f_lasti), self.count)
            elif self.count >= self.at and not self.where:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
                sys.settrace(None)
                INTERRUPT.sent  # noqa: B018  # nothing may be called between this and the end
        return self._of_instruction


class OfTheUser(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class BelowOfTheUser(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def with_trainer() -> tuple[nn.Module, Callable[[], None]]:
    model = Toy(mlp())
    monitor = HealthMonitor(every_n_steps=4)
    return model, lambda: fit(None, model, batches(*[4] * 8), monitor)


def with_watch() -> tuple[nn.Module, Callable[[], None]]:
    model, monitor = mlp(), HealthMonitor(every_n_steps=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def run() -> None:
        with watch(model, optimizer, [monitor]) as run:
            for batch in batches(*[4] * 8):
                with run.step(batch):
                    model(batch).square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()

    return model, run


def state() -> dict[str, Any]:
    """Return what a training may leave changed in this process."""
    return {
        "function modes": [id(one) for one in _get_current_function_mode_stack()],
        "dispatch modes": [id(one) for one in _get_current_dispatch_mode_stack()],
        "default device": str(getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)),
        "backward": torch.autograd.backward,
        "has_torch_function": torch.overrides.has_torch_function,
        "compiled": eval_frame._maybe_set_eval_frame,
        "attention": nn.functional.scaled_dot_product_attention,
        "hooks of optimizers": [
            *optimizers._global_optimizer_pre_hooks.values(),
            *optimizers._global_optimizer_post_hooks.values(),
        ],
        "filters": list(warnings.filters),
        "showwarning": warnings.showwarning,
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "autocast cache": torch.is_autocast_cache_enabled(),
        "torch functions": torch._C._is_torch_function_enabled(),
        "all torch functions": torch._C._is_torch_function_all_disabled(),
        "keys left out": str(torch._C._dispatch_tls_local_exclude_set()),
        "keys put in": str(torch._C._dispatch_tls_local_include_set()),
        "own calls": list(own_calls),
        "listeners": dict(hooked._listeners),
        "in backward": dict(vars(hooked._in_backward)),
        "saved tensors hooks": torch._C._autograd._saved_tensors_hooks_get_disabled_error_message(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "anomaly": torch.is_anomaly_enabled(),
    }


def hooks_of(model: nn.Module) -> list[str]:
    """Return what stands on the modules and parameters of a model and is no part of it."""
    found = [
        f"{name} {kind}"
        for name, module in model.named_modules()
        for kind, hooks in vars(module).items()
        if "hooks" in kind and hooks and not kind.startswith("_load_state") and "state_dict" not in kind
    ]
    found += [
        f"{name} {own}"
        for name, one in model.named_modules()
        for own in ("forward", "_compiled_call_impl")
        if vars(one).get(own) is not None
    ]
    for name, parameter in model.named_parameters():
        found += [f"{name} hook"] * bool(parameter._backward_hooks)
        found += [f"{name} accumulate"] * bool(getattr(parameter, "_post_accumulate_grad_hooks", None))
    return found


def put_back(was: dict[str, Any]) -> None:
    """Clear what an earlier interrupt has left."""
    torch.autograd.backward = was["backward"]
    torch.overrides.has_torch_function = was["has_torch_function"]
    eval_frame._maybe_set_eval_frame = was["compiled"]
    nn.functional.scaled_dot_product_attention = was["attention"]
    optimizers._global_optimizer_pre_hooks.clear()
    optimizers._global_optimizer_post_hooks.clear()
    warnings.filters[:] = was["filters"]
    torch.set_grad_enabled(True)
    own_calls.clear()
    hooked._listeners.clear()
    vars(hooked._in_backward).clear()
    for _ in _get_current_dispatch_mode_stack():
        _pop_mode()
    for _ in _get_current_function_mode_stack():
        torch.overrides._pop_mode()


def left_by(run: Callable[[], None], model: nn.Module, moments: Moments | None) -> list[str]:
    """Run a training that is interrupted at a moment; return what is left of it, and put that back."""
    torch.set_default_device("cpu")
    user = OfTheUser()
    torch.overrides._push_mode(user)
    _push_mode(BelowOfTheUser())
    before = state()
    was_hooked = hooks_of(model)
    if moments is not None:
        moments.begin()
    interrupt = None
    try:
        run()
    except (KeyboardInterrupt, SystemExit) as error:
        interrupt = error  # as a notebook does, which keeps all frames alive
    finally:
        sys.settrace(None)
    after = state()
    left = [f"{key}: {after[key]}" for key in before if before[key] != after[key]]
    left += [one for one in hooks_of(model) if one not in was_hooked]
    put_back(before)
    torch._GLOBAL_DEVICE_CONTEXT.device_context = None
    if moments is not None and moments.at is not None and interrupt is None:
        left.append("not interrupted")
    return left
