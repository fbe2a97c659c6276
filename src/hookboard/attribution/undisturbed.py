"""A call of a model that leaves no trace."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from hookboard.hooks import own_call, run_eagerly
from hookboard.torch_private import buffers_of


@contextmanager
def undisturbed(module: nn.Module) -> Iterator[None]:
    """Make a call of our own of `module` inside the context, with gradients.

    Inside, compiled code runs uncompiled, taps observe nothing, and edits use copies of their rules. Afterwards the
    random state (of Python, NumPy, torch's CPU and CUDA generators) and the buffers and plain attributes of all
    modules are as they were. Parameters are not saved: a call does not change them.
    """
    with torch.inference_mode(False), torch.enable_grad(), run_eagerly(), own_call(), _same_random_state():
        states = [_State(owner) for owner in module.modules()]
        try:
            yield
        finally:
            with torch.no_grad():
                for state in states:
                    state.restore()


@contextmanager
def _same_random_state() -> Iterator[None]:
    of_python, of_numpy = random.getstate(), np.random.get_state()
    # The CPU's generator, and those of all CUDA devices if CUDA is in use.
    with torch.random.fork_rng(range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []):
        try:
            yield
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)


class _State:
    """The buffers and plain attributes of one module; lists, dicts and sets among them with what is in them."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._buffers = dict(buffers_of(module))
        own = {name: value for name, value in module.__dict__.items() if name not in _OF_TORCH}
        self._attributes = own
        tensors = [*buffers_of(module).values(), *own.values()]
        self._tensors = [(t, t.detach().clone()) for t in tensors if isinstance(t, Tensor)]
        self._containers = [(value, value.copy()) for value in own.values() if isinstance(value, list | dict | set)]

    def restore(self) -> None:
        buffers = buffers_of(self._module)
        buffers.clear()
        buffers.update(self._buffers)
        for name in self._module.__dict__.keys() - self._attributes.keys() - _OF_TORCH:
            del self._module.__dict__[name]
        self._module.__dict__.update(self._attributes)
        for container, content in self._containers:
            container.clear()
            container.extend(content) if isinstance(container, list) else container.update(content)
        for tensor, before in self._tensors:
            # Batch norm changes its buffers without a new version: only the values tell.
            if not torch.equal(tensor, before):
                tensor.copy_(before)


_OF_TORCH = frozenset(nn.Module().__dict__) - {"training"}
"""What every module has, its hooks among it."""
