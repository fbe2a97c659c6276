"""Taps without a Trainer: keep the tensors that modules take and return, and their gradients."""

import functools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from hookboard.capture.captured import Call, CapturedModule, Keeper
from hookboard.hooks import (
    UNKNOWN,
    Edit,
    EditRole,
    Edits,
    Rule,
    Switch,
    Taps,
    apply_rule,
    edited_gradient,
    is_own_call,
    run_eagerly,
    watch_output,
    why_no_gradient,
)
from hookboard.messages import chosen, unknown
from hookboard.selection import Patterns, Types, select
from hookboard.sites import Site
from hookboard.torch_private import in_backward

CaptureRole = Literal["input", "output", "grad_input", "grad_output"]


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
) -> Iterator["Captured"]:
    """Keep what the selected modules take and return inside the block, and its gradients, and change it on the way.

    What is kept is what an edit has made of it. A backward pass is to run inside the block for its gradients to be
    kept. Compiled modules run eagerly inside it. When the block is left, by whatever way, no hook stays behind; what
    was captured stays with the result.

    Args:
        model: Any module; one without submodules is itself what is captured, under the name `""`.
        modules: Pattern or patterns over dotted module names, as for the callbacks. Left out: every leaf module, or,
            with `types`, every module of those types.
        types: Class names or classes; subclasses count, a leading `!` excludes.
        roles: From `input`, `output`, `grad_input`, `grad_output`.
        copy: Whether to keep copies. Otherwise the tensors themselves are kept, in their graph; reading one that an
            in-place operation has changed since is an error.
        device: Where to move what is kept, as `"cpu"`. Left out: it stays where it is.
        calls: How many calls of each module are kept, from the first. Left out: all.
        edit: What is changed, and where: one `Edit`, or several, which apply in their order.

    Raises:
        ValueError: a pattern or type matches no module, a role is unknown, or a module cannot be edited.
        LookupError: when the block is left: an edit has changed nothing, for its module was not called or no gradient
            came to it.

    Example:
        >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
        >>> with capture(net, "0", roles=["output", "grad_output"]) as seen:
        ...     net(torch.ones(4, 2)).sum().backward()
        >>> seen["0"].output.shape, seen["0"].grad_output.shape
        (torch.Size([4, 3]), torch.Size([4, 3]))
    """
    wanted = chosen("roles", roles, get_args(CaptureRole))
    hooks = []
    for one in [edit] if isinstance(edit, Edit) else edit:
        chosen("roles", one.role, get_args(EditRole))
        hooks.append(Edits(_select(model, one.modules, one.types), one.role, one.rule))
    seen = Captured(_select(model, modules, types), wanted, Keeper(copy, device), calls)
    with run_eagerly():
        try:
            seen._start()
            for edits in hooks:
                edits.attach()
            yield seen
        finally:
            for edits in hooks:
                edits.detach()
            seen._stop()
    for edits in hooks:
        edits.check_made()


def _select(model: nn.Module, modules: Patterns | None, types: Types | None) -> dict[str, nn.Module]:
    is_alone = modules is None and types is None and next(model.children(), None) is None
    return {"": model} if is_alone else select(model, modules, types)


class Captured(Mapping[str, CapturedModule]):
    """What was captured, by module name, and by the names that were given to `watch`."""

    def __init__(
        self, modules: Mapping[str, nn.Module], roles: Sequence[CaptureRole], keeper: Keeper, calls: int | None
    ) -> None:
        self._keeper = keeper
        self._most = calls
        self._switch = Switch()
        self._handles: list[torch.utils.hooks.RemovableHandle] = []
        self._taps = Taps(modules, roles, self._open, each_call=True)
        self._found = {
            name: CapturedModule(name, type(module).__name__, tuple(roles), self._taps.why_silent)
            for name, module in modules.items()
        }

    def __getitem__(self, name: str) -> CapturedModule:
        if name not in self._found:
            raise KeyError(str(unknown("module", name, self._found)))
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def watch(self, tensor: Tensor, name: str, edit_grad: Rule | None = None) -> Tensor:
        """Keep a tensor that no module returns as the `output` of `name`, and its gradient as `grad_output`.

        Args:
            tensor: any tensor inside the block.
            name: how it is to be found; every further tensor of the name is a further call.
            edit_grad: changes the gradient that arrives at what is returned, before it is kept and goes on.

        Returns:
            The tensor; with `edit_grad` a copy of it, to be used in its place.

        Raises:
            ValueError: the name is that of a module, or the gradient of a tensor that needs none is to be changed.
        """
        if not is_own_call():
            self._watch(tensor, name)
        if edit_grad is None:
            return tensor
        if not tensor.requires_grad:
            raise ValueError(f"the gradient of {name!r} cannot be changed: the tensor {why_no_gradient(tensor)}")
        return edited_gradient(tensor, lambda gradient: apply_rule(edit_grad, gradient, f"gradient of {name!r}"))

    def _watch(self, tensor: Tensor, name: str) -> None:
        if name not in self._found:
            self._found[name] = CapturedModule(name, "Tensor", ("output", "grad_output"), lambda *_: "")
        watched = self._found[name]
        if watched.kind != "Tensor":
            raise ValueError(f"{name!r} is the name of a module: take another one for the tensor")
        reason = "" if tensor.requires_grad else f"the tensor {why_no_gradient(tensor)}"
        watched.why = lambda *_: reason or "no gradient arrived: the tensor took no part in what was back-propagated"
        index = len(watched.calls)
        if in_backward():  # a checkpoint computes it again
            index = 0 if len(watched.calls) == 1 else UNKNOWN
        elif self._most is not None and index >= self._most:
            return
        else:
            self._keep(Site(name, "output"), index, tensor)
        if tensor.requires_grad:
            observe = self._open(Site(name, "grad_output"))
            handle = watch_output(tensor, functools.partial(observe, index), self._switch)
            if handle is not None:
                self._handles.append(handle)

    def summary(self) -> str:
        """A table: module, type, role and call, shape, mean, standard deviation and share of zeros of each tensor."""
        header = ["name", "type", "tensor", "shape", "mean", "std", "zeros"]
        rows = [row for captured in self._found.values() for row in captured.rows()]
        widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in [header, *rows]]
        return "\n".join(lines)

    def __repr__(self) -> str:
        inside = ", ".join(map(repr, self._found.values()))
        return f"Captured({inside})"

    def _start(self) -> None:
        self._taps.attach()
        self._taps.active = self._switch.on = True

    def _stop(self) -> None:
        self._taps.detach()
        self._switch.on = False
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _open(self, site: Site) -> Callable[[int, Tensor], None]:
        # A graph holds its hooks, and what is kept may hold the graph: no collector would see that circle.
        captured = weakref.ref(self)

        def observe(index: int, tensor: Tensor) -> None:
            still = captured()
            if still is not None:
                still._keep(site, index, tensor)

        return observe

    def _keep(self, site: Site, index: int, tensor: Tensor) -> None:
        if self._most is not None and index >= self._most:
            return
        captured = self._found[site.name]
        if index == UNKNOWN:
            captured.is_ambiguous = True
            return
        while len(captured.calls) <= index:
            captured.calls.append(Call(captured))
        slots = captured.calls[index].kept.setdefault(site.role, {})
        earlier = slots.get(site.index)
        if earlier is not None and site.role.startswith("grad"):
            # Of several backward passes the gradients add up, as they do in `.grad`.
            tensor = earlier.value(str(site)) + tensor.to(earlier.tensor.device)
        slots[site.index] = self._keeper.keep(tensor)
