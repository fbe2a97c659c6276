"""Runs code of the user's that computes a weight, without a trace."""

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hookboard.eager import run_eagerly
from hookboard.state import State, same_random_state
from hookboard.torch_private import buffers_of, is_compiled, parameters_of, without_hooks


def computed(module: nn.Module, compute: Callable[[], Tensor]) -> Tensor:
    """Return what code of a module computes from its parameters, in evaluation mode and without autocast, detached.

    The module is as it was afterwards: random state, parameters, buffers, attributes and modes. Hooks on it and on the
    modules inside it do not run, those of torch's own excepted. What draws from the global generators gets the same
    numbers in each call, so that two results differ only by what the module holds.

    Args:
        module: the module that may change meanwhile, and all modules inside it.
        compute: runs its code.
    """
    parts = [part for part in module.modules() if not isinstance(part, torch.jit.ScriptModule)]
    eagerly = run_eagerly() if any(map(is_compiled, parts)) else nullcontext()
    devices = {tensor.device.type for held in _tensors_of(parts) for tensor in held.values() if tensor is not None}
    with ExitStack() as until_computed:
        until_computed.enter_context(torch.no_grad())
        until_computed.enter_context(eagerly)
        until_computed.enter_context(same_random_state())
        for device in filter(torch.amp.is_autocast_available, devices):
            until_computed.enter_context(torch.autocast(device, enabled=False))
        until_computed.callback(State(module).restore)
        until_computed.enter_context(_evaluating(module))
        until_computed.enter_context(without_hooks(parts))
        until_computed.enter_context(_on_copies(parts))
        random.seed(0)
        np.random.seed(0)
        torch.default_generator.manual_seed(0)
        torch.cuda.manual_seed_all(0)  # once CUDA is in use
        weight = compute()
        if not isinstance(weight, Tensor):
            raise TypeError(f"a weight that is no tensor: {type(weight).__name__}")
        return weight.detach()


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Put the module, and those inside it, in evaluation mode: some change their state in training."""
    modes = [(part, part.training) for part in module.modules()]
    try:
        for part, _ in modes:
            part.training = False
        yield
    finally:
        for part, mode in modes:
            part.training = mode


@contextmanager
def _on_copies(parts: list[nn.Module]) -> Iterator[None]:
    """Put copies in place of parameters and buffers: to autograd, one put back would be another version."""
    copies: dict[int, Tensor] = {}
    with ExitStack() as until_end:
        for held in _tensors_of(parts):
            before = dict(held)
            until_end.callback(held.update, before)
            until_end.callback(held.clear)  # which comes first
            for name, tensor in before.items():
                if tensor is not None:
                    if id(tensor) not in copies:
                        copies[id(tensor)] = tensor.detach().clone()
                    held[name] = copies[id(tensor)]
        yield


def _tensors_of(parts: list[nn.Module]) -> Iterator[dict[str, Any]]:
    for part in parts:
        yield from (parameters_of(part), buffers_of(part))
