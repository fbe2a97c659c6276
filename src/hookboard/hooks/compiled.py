"""Compiled code that runs again as it was written."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from hookboard.torch_private import compiler_stance, in_backward, is_compiled  # noqa: F401


def forget_graphs(model: nn.Module) -> None:
    """Have compiled modules of `model` compiled anew: a graph does not see hooks that come after it."""
    if any(is_compiled(module) for module in model.modules()):
        torch.compiler.reset()


def run_eagerly() -> AbstractContextManager[Any]:
    """Until the context is left, compiled code runs as it was written, so that hooks which came later fire.

    Contexts may be left in the order in which they were entered: only the first changes anything.
    """
    if compiler_stance() == "force_eager":
        return nullcontext()
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance
