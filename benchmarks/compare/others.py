"""Two other ways to find where models differ: norms of what modules return, and torch's own `DebugMode`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hookboard.model.nested import tensors_in

TOLERANCE = 1e-3
"""Norms that differ by more than this, relative to the larger, are told apart."""

Call = Callable[[nn.Module], Any]

Norms = list[tuple[str, str, float]]
"""Module, what was computed, and its norm, in the order of execution."""


def norms_of_modules(model: nn.Module, call: Call) -> Norms:
    """Return the norm of what each module returns, as a hook on every module would print it."""
    found: Norms = []
    handles = []
    for name, module in model.named_modules():

        def keep(module: nn.Module, args: Any, output: Any, name: str = name) -> None:
            found.extend((name, path, float(one.double().norm())) for path, one in tensors_in(output))

        handles.append(module.register_forward_hook(keep))
    with torch.no_grad():
        call(model)
    for handle in handles:
        handle.remove()
    return found


def norms_of_operations(model: nn.Module, call: Call) -> Norms | None:
    """Return the norm of what each operation returns, by `DebugMode`; None if this torch has none."""
    try:
        from torch.utils._debug_mode import DebugMode
    except ImportError:
        return None
    root = type(model).__name__
    found: Norms = []
    inside: list[tuple[int, str]] = []
    with torch.no_grad(), DebugMode(record_nn_module=True) as mode, DebugMode.log_tensor_hashes("norm"):
        call(model)
    for one in mode.logs:
        while inside and inside[-1][0] >= one.call_depth:
            inside.pop()
        if type(one).__name__ == "_AnnotateCall":
            inside.append((one.call_depth, one.tag.removeprefix(root).removeprefix(".")))
        elif getattr(one, "log", None) and "hash" in one.log:
            hashes = one.log["hash"]
            for k, value in enumerate(hashes if isinstance(hashes, tuple | list) else [hashes]):
                if value is not None:
                    found.append((inside[-1][1] if inside else "", f"{one.op} {k}", float(value)))
    return found


def first_apart(left: Norms, right: Norms, tolerance: float) -> set[str]:
    """Return the module of the first norm that differs; two where not the same was computed, as either may be to blame.

    Empty if there is none.
    """
    for (name, what, one), (other, what_there, two) in zip(left, right, strict=False):
        is_apart = abs(one - two) > tolerance * max(abs(one), abs(two)) or (one == one) != (two == two)
        if (name, what) != (other, what_there) or is_apart:
            return {name, other}
    longer = left if len(left) > len(right) else right
    return set() if len(left) == len(right) else {longer[min(len(left), len(right))][0]}
