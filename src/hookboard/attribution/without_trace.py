"""A call of a model that leaves no trace."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

from hookboard.attribution.state import State
from hookboard.hooks import own_call, run_eagerly


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
    with torch.inference_mode(False), torch.enable_grad(), run_eagerly(), own_call(), _same_random_state():
        state = State(module, *given)
        try:
            yield
        finally:
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
