"""Taps without a Trainer: keep the tensors that modules take and return, and their gradients."""

import functools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from hookboard.compiled import in_backward, run_eagerly
from hookboard.edits import Edit, EditRole, Edits, Rule, apply_rule, edited_gradient
from hookboard.gradients import Switch, watch_output, why_no_gradient
from hookboard.moments import REQUESTABLE, Moments, Scratch, measure
from hookboard.selection import Patterns, Types, select
from hookboard.sites import Role, Site
from hookboard.statistics import FORMULAS
from hookboard.suggest import chosen, unknown
from hookboard.taps import UNKNOWN, Taps
from hookboard.values import real_values

CaptureRole = Literal["input", "output", "grad_input", "grad_output"]

Tensors = Tensor | dict[str, Tensor]
"""One tensor, or, of several, each by the index or key that leads to it."""

SUMMARY = ("mean", "std", "zero_fraction")


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
    seen = Captured(_select(model, modules, types), wanted, _Keeper(copy, device), calls)
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


class Captured(Mapping[str, "CapturedModule"]):
    """What was captured, by module name, and by the names that were given to `watch`."""

    def __init__(
        self, modules: Mapping[str, nn.Module], roles: Sequence[CaptureRole], keeper: "_Keeper", calls: int | None
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

    def __getitem__(self, name: str) -> "CapturedModule":
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
        rows = [row for captured in self._found.values() for row in captured._rows()]
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
        slots = captured.calls[index]._kept.setdefault(site.role, {})
        earlier = slots.get(site.index)
        if earlier is not None and site.role.startswith("grad"):
            # Of several backward passes the gradients add up, as they do in `.grad`.
            tensor = earlier.value(str(site)) + tensor.to(earlier.tensor.device)
        slots[site.index] = self._keeper.keep(tensor)


@dataclass
class CapturedModule:
    """What was captured of one module.

    `input`, `output`, `grad_input` and `grad_output` are those of its only call. One tensor stands for itself; several
    are a dict by the index or key that leads to each, as in tags.

    Args:
        name: the module's dotted name.
        kind: its type.
        roles: what was asked for.
        why: tells why nothing of a role has been captured.
        calls: what was captured of each call, in their order.
    """

    name: str
    kind: str
    roles: tuple[Role, ...]
    why: Callable[[str, Role], str] = field(repr=False)
    calls: list["Call"] = field(default_factory=list)
    is_ambiguous: bool = field(default=False, repr=False)

    @property
    def input(self) -> Tensors:
        """What the module took."""
        return self._only("input").input

    @property
    def output(self) -> Tensors:
        """What the module returned."""
        return self._only("output").output

    @property
    def grad_input(self) -> Tensors:
        """The gradient that the module passed back to what it took."""
        return self._only("grad_input").grad_input

    @property
    def grad_output(self) -> Tensors:
        """The gradient with respect to what the module returned."""
        return self._only("grad_output").grad_output

    def __repr__(self) -> str:
        parts = [f"{role} {_shapes(kept)}" for call in self.calls[:1] for role, kept in call._kept.items()]
        if len(self.calls) != 1:
            parts.append(f"{len(self.calls)} calls")
        return f"{self.name or 'model'} ({self.kind}): {'; '.join(parts)}"

    def _only(self, role: Role) -> "Call":
        if len(self.calls) > 1:
            raise LookupError(f"{self.name!r} was called {len(self.calls)} times: take .calls[0].{role}, and so on")
        return self.calls[0] if self.calls else Call(self)

    def _rows(self) -> Iterator[list[str]]:
        for k, call in enumerate(self.calls):
            for role, kept in call._kept.items():
                for path, one in kept.items():
                    which = (f"calls[{k}]." if len(self.calls) > 1 else "") + role + (f" {path}" if path else "")
                    tensor = one.value(f"{role} of {self.name!r}")
                    yield [self.name, self.kind, which, str(tuple(tensor.shape)), *_described(tensor)]


class Call:
    """What was captured of one call of a module."""

    def __init__(self, module: CapturedModule) -> None:
        self._module = module
        self._kept: dict[Role, dict[str, _Kept]] = {}

    @property
    def input(self) -> Tensors:
        """What the module took."""
        return self._of("input")

    @property
    def output(self) -> Tensors:
        """What the module returned."""
        return self._of("output")

    @property
    def grad_input(self) -> Tensors:
        """The gradient that the module passed back to what it took."""
        return self._of("grad_input")

    @property
    def grad_output(self) -> Tensors:
        """The gradient with respect to what the module returned."""
        return self._of("grad_output")

    def __repr__(self) -> str:
        return "; ".join(f"{role} {_shapes(kept)}" for role, kept in self._kept.items())

    def _of(self, role: Role) -> Tensors:
        module = self._module
        if role not in module.roles:
            asked = ", ".join(module.roles)
            raise LookupError(f"the {role} of {module.name!r} was not asked for: roles has {asked}")
        if role.startswith("grad") and module.is_ambiguous:
            raise LookupError(
                f"{module.name!r} was called several times and recomputed by a checkpoint: which call a gradient "
                "belongs to cannot be told. Checkpoint with use_reentrant=False."
            )
        kept = self._kept.get(role)
        if not kept:
            raise LookupError(f"there is no {role} of {module.name!r}: {module.why(module.name, role)}")
        values = {path: one.value(f"the {role} of {module.name!r}") for path, one in kept.items()}
        return values[""] if list(values) == [""] else values


@dataclass
class _Kept:
    """A tensor, and, where it is no copy, its version when it was captured."""

    tensor: Tensor
    version: int | None

    def value(self, what: str) -> Tensor:
        if self.version is not None and self.tensor._version != self.version:
            raise RuntimeError(f"{what} was changed in place after it was captured: capture it with copy=True")
        return self.tensor


@dataclass
class _Keeper:
    """How tensors are kept."""

    copy: bool
    device: str | torch.device | None

    def keep(self, tensor: Tensor) -> _Kept:
        # An inference tensor has no version that would tell a change.
        if self.copy or tensor.is_inference():
            return _Kept(tensor.detach().to(self.device or tensor.device, copy=True), None)
        moved = tensor if self.device is None else tensor.to(self.device)
        return _Kept(moved, moved._version)


def _shapes(kept: Mapping[str, _Kept]) -> str:
    return ", ".join(f"{path} {tuple(one.tensor.shape)}".strip() for path, one in kept.items())


def _described(tensor: Tensor) -> list[str]:
    values, implicit_zeros = real_values(tensor.detach().cpu())
    row = measure(values, implicit_zeros, REQUESTABLE, Scratch())
    moments = Moments(*(row.tolist() if isinstance(row, Tensor) else row))
    return [f"{FORMULAS[name].value(moments):.4g}" for name in SUMMARY]
