"""`capture`: keep the inputs and outputs of modules, and their gradients, without a Trainer."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import get_args

import torch
from torch import nn

from hookboard.capturing.captured import Captured, CaptureRole
from hookboard.capturing.module import Keeper
from hookboard.checks import check_switches, check_whole, chosen, wrong
from hookboard.eager import run_eagerly
from hookboard.editing import Edit, Edits
from hookboard.selection import Patterns, Types, select


@contextmanager
def capture(
    model: nn.Module,
    modules: Patterns | None = None,
    *,
    types: Types | None = None,
    roles: CaptureRole | Sequence[CaptureRole] = "output",
    copy: bool = True,
    device: str | torch.device | None = None,
    calls: int | None = None,
    edit: Edit | Sequence[Edit] = (),
) -> Iterator[Captured]:
    """Keep the inputs, outputs and gradients of the selected modules while a block runs, and change them if asked.

    Edited tensors are kept as they are after the edit. Gradients are kept if the backward pass runs inside the block.
    Compiled modules run uncompiled inside it. When the block ends, also by an error, all hooks are removed; the result
    keeps the captured tensors.

    Args:
        model: Any module. If it has no submodules, it is captured itself, under the name `""`.
        modules: Pattern or patterns over dotted module names, as for the callbacks. Left out: every leaf module, or,
            with `types`, every module of those types.
        types: Class names or classes; subclasses count, a leading `!` excludes.
        roles: Which tensors are kept, one or several of `input`, `output`, `grad_input`, `grad_output`.
        copy: Whether to keep copies. Otherwise the tensors themselves are kept, in their graph; reading one that an
            in-place operation has changed since is a RuntimeError.
        device: The device to move kept tensors to, such as `"cpu"`. Left out: they stay where they are.
        calls: How many calls of each module are kept, from the first. Left out: all.
        edit: One `Edit`, or several, which apply in their order.

    Yields:
        The captured tensors by module name; it can be used inside and after the block.

    Raises:
        ValueError: a pattern or type matches no module, a role is unknown, or a module cannot be edited.
        LookupError: At the end of the block: an edit has changed nothing, because its module was not called or no
            gradient came to it.

    Example:
        >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
        >>> with capture(net, "0", roles=["output", "grad_output"]) as seen:
        ...     net(torch.ones(4, 2)).sum().backward()
        >>> seen["0"].output.shape, seen["0"].grad_output.shape
        (torch.Size([4, 3]), torch.Size([4, 3]))
    """
    if not isinstance(model, nn.Module):
        raise wrong("model", model, "a torch.nn.Module")
    wanted = chosen("roles", roles, get_args(CaptureRole))
    check_switches(copy=copy)
    check_whole("calls", calls, otherwise="for all")
    if device is not None:
        _check_device(device)
    edits = []
    for one in edit if isinstance(edit, list | tuple) else [edit]:
        if not isinstance(one, Edit):
            raise wrong("edit", one, "an Edit, which says where too, as in Edit(Zero(), 'layer1')")
        edits.append(Edits(_select(model, one.modules, one.types), one.role, one.rule))
    seen = Captured(_select(model, modules, types), wanted, Keeper(copy, device), calls)
    with run_eagerly(), ExitStack() as hooks:
        hooks.enter_context(seen.attached())
        for each in edits:
            hooks.callback(each.detach)
            each.attach()
        yield seen
    for each in edits:
        each.check_made()


def _check_device(device: object) -> None:
    error = wrong("device", device, "a device that is there, such as 'cpu'", "to leave tensors where they are")
    if not isinstance(device, str | torch.device):
        raise error
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as cause:  # the second one where torch was built without CUDA
        raise error from cause


def _select(model: nn.Module, modules: Patterns | None, types: Types | None) -> dict[str, nn.Module]:
    is_alone = modules is None and types is None and next(model.children(), None) is None
    return {"": model} if is_alone else select(model, modules, types)
