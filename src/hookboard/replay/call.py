"""A call of a model that leaves no trace."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from hookboard.eager import run_eagerly
from hookboard.hooks import own_call
from hookboard.state import State, same_random_state


@contextmanager
def undisturbed(module: nn.Module, *given: object) -> Iterator[None]:
    """Make a call of our own of `module` inside the context, with gradients.

    Inside, compiled code runs uncompiled, taps observe nothing, and edits use copies of their rules. Afterwards the
    random state (of Python, NumPy, torch's CPU and CUDA generators) and what all modules hold are as they were, see
    `State`. Parameters are not saved: a call does not change them.

    Args:
        module: the module.
        given: what it is called with, if the call may change it; it is put back too.
    """
    with torch.inference_mode(False), torch.enable_grad(), run_eagerly(), own_call(), same_random_state():
        state = State(module, *given)
        try:
            yield
        finally:
            state.restore()
