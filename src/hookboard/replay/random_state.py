"""`RandomState`: the state of the global random generators, and which of them have moved since."""

import pickle
import random
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor


class Generator(NamedTuple):
    """One of the global random generators.

    Args:
        read: returns its state; None if it is not in use yet.
        write: restores such a state.
        as_bytes: converts a state to bytes, to compare states.
    """

    read: Callable[[], Any]
    write: Callable[[Any], None]
    as_bytes: Callable[[Any], bytes]


def _of_cuda() -> Tensor | None:
    return torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None


GENERATORS = {
    "torch": Generator(
        lambda: torch.default_generator.clone_state(),  # a tensor of it takes longer to make
        lambda state: torch.set_rng_state(state.get_state()),
        lambda state: state.get_state().numpy().tobytes(),
    ),
    "CUDA": Generator(_of_cuda, lambda state: torch.cuda.set_rng_state(state), lambda state: state.numpy().tobytes()),
    "NumPy": Generator(lambda: np.random.get_state(legacy=False), np.random.set_state, pickle.dumps),
    "Python": Generator(random.getstate, random.setstate, pickle.dumps),
}
"""The global random generators by name."""


class RandomState:
    """The state of global random generators at the time when this object is made.

    Args:
        of: the names of the generators. Reading a state takes 50 us or more.
    """

    def __init__(self, of: Collection[str] = GENERATORS.keys()) -> None:
        self._states = {name: state for name in of if (state := GENERATORS[name].read()) is not None}

    def restore(self) -> None:
        """Put the generators back into that state."""
        for name, state in self._states.items():
            GENERATORS[name].write(state)

    def moved(self) -> set[str]:
        """Return the names of the generators that numbers have been drawn from since."""
        found = set()
        for name, state in self._states.items():
            _, _, as_bytes = generator = GENERATORS[name]
            if as_bytes(state) != as_bytes(generator.read()):
                found.add(name)
        return found

    def of_others(self) -> "RandomState":
        """Return the present state of the generators that this object does not hold."""
        return RandomState(GENERATORS.keys() - self._states.keys())
