"""A call of a model that leaves no trace."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextlib import nullcontext as shut_taps

import torch
from lightning.fabric.utilities.seed import _collect_rng_states, _set_rng_states
from torch import Tensor, nn

from hookboard.hooks.compiled import run_eagerly


@contextmanager
def undisturbed(module: nn.Module) -> Iterator[None]:
    """Gradients are on inside, compiled code runs eagerly, our own taps are shut.

    Random state, and what the modules hold beside their parameters, are afterwards as they were.
    """
    random_states = _collect_rng_states()
    with torch.inference_mode(False), torch.enable_grad(), run_eagerly(), shut_taps(module):
        states = [_State(owner) for owner in module.modules()]
        try:
            yield
        finally:
            _set_rng_states(random_states)
            with torch.no_grad():
                for state in states:
                    state.restore()


class _State:
    """The buffers and plain attributes of one module; lists, dicts and sets among them with what is in them."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._buffers = dict(module._buffers)
        own = {name: value for name, value in module.__dict__.items() if name not in _OF_TORCH}
        self._attributes = own
        tensors = [*module._buffers.values(), *own.values()]
        self._tensors = [(t, t.detach().clone()) for t in tensors if isinstance(t, Tensor)]
        self._containers = [(value, value.copy()) for value in own.values() if isinstance(value, list | dict | set)]

    def restore(self) -> None:
        self._module._buffers.clear()
        self._module._buffers.update(self._buffers)
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
