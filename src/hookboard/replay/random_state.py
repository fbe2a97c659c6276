"""`RandomState`: saves the states of the global random generators, and tells which have been used since."""

import pickle
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor


class Generator(NamedTuple):
    """The functions that read and set the state of one global random generator.

    Args:
        read: returns a copy of the state; None for CUDA before its first use.
        write: sets the generator to a state that `read` returned.
        as_bytes: converts such a state to bytes, to compare two of them.
    """

    read: Callable[[], Any]
    write: Callable[[Any], None]
    as_bytes: Callable[[Any], bytes]


def _of_cuda() -> Tensor | None:
    return torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None


_GENERATORS = {
    "torch": Generator(
        lambda: torch.default_generator.clone_state(),  # `get_rng_state` takes longer, because it makes a tensor
        lambda state: torch.set_rng_state(state.get_state()),
        lambda state: state.get_state().numpy().tobytes(),
    ),
    "CUDA": Generator(_of_cuda, lambda state: torch.cuda.set_rng_state(state), lambda state: state.numpy().tobytes()),
    "NumPy": Generator(lambda: np.random.get_state(legacy=False), np.random.set_state, pickle.dumps),
    "Python": Generator(random.getstate, random.setstate, pickle.dumps),
}
"""The global random generators by name; `CUDA` is that of the current device."""


class RandomState:
    """The states of global random generators at the time when this object was made.

    CUDA's is left out before its first use.

    Examples:
        >>> state = RandomState()
        >>> first = torch.rand(())
        >>> state.moved()
        {'torch'}
        >>> state.restore()
        >>> torch.equal(torch.rand(()), first)
        True
    """

    def __init__(self) -> None:
        read = {name: generator.read() for name, generator in _GENERATORS.items()}
        self._states = {name: state for name, state in read.items() if state is not None}

    def restore(self) -> None:
        """Set the generators to the saved states."""
        for name, state in self._states.items():
            _GENERATORS[name].write(state)

    def moved(self) -> set[str]:
        """Return the names of the saved generators whose state has changed since, as drawing a number does."""
        found = set()
        for name, state in self._states.items():
            _, _, as_bytes = generator = _GENERATORS[name]
            if as_bytes(state) != as_bytes(generator.read()):
                found.add(name)
        return found
