"""What was captured of a module: its calls, their tensors, and why there is none."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hookboard.measure import Moments, measure, plan
from hookboard.sites import Role

Tensors = Tensor | dict[str, Tensor]
"""One tensor, or, of several, each by the index or key that leads to it."""

SUMMARY = ("mean", "std", "zero_fraction")
_SUMMARY = plan(SUMMARY)


class _OfRoles:
    """The tensors of each role, for one call or for the only one."""

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

    def _of(self, role: Role) -> Tensors:
        raise NotImplementedError


@dataclass
class CapturedModule(_OfRoles):
    """What was captured of one module.

    `input`, `output`, `grad_input` and `grad_output` are those of its only call. One tensor stands for itself; several
    are a dict by the index or key that leads to each, as in tags.

    Args:
        name: the module's dotted name.
        kind: its type.
        roles: what was asked for.
        why: tells why nothing of a role has been captured.
        calls: what was captured of each call, in their order.
        is_ambiguous: whether gradients came of which the call cannot be told.
    """

    name: str
    kind: str
    roles: tuple[Role, ...]
    why: Callable[[str, Role], str] = field(repr=False)
    calls: list["Call"] = field(default_factory=list)
    is_ambiguous: bool = field(default=False, repr=False)

    def __repr__(self) -> str:
        parts = [f"{role} {_shapes(kept)}" for call in self.calls[:1] for role, kept in call.kept.items()]
        if len(self.calls) != 1:
            parts.append(f"{len(self.calls)} calls")
        return f"{self.name or 'model'} ({self.kind}): {'; '.join(parts)}"

    def _of(self, role: Role) -> Tensors:
        if len(self.calls) > 1:
            raise LookupError(f"{self.name!r} was called {len(self.calls)} times: take .calls[0].{role}, and so on")
        return (self.calls[0] if self.calls else Call(self))._of(role)

    def rows(self) -> Iterator[list[str]]:
        """The lines of a summary: name, type, which tensor, its shape and what describes it."""
        for k, call in enumerate(self.calls):
            for role, kept in call.kept.items():
                for path, one in kept.items():
                    which = (f"calls[{k}]." if len(self.calls) > 1 else "") + role + (f" {path}" if path else "")
                    tensor = one.value(f"{role} of {self.name!r}")
                    yield [self.name, self.kind, which, str(tuple(tensor.shape)), *_described(tensor)]


class Call(_OfRoles):
    """What was captured of one call of a module."""

    def __init__(self, module: CapturedModule) -> None:
        self._module = module
        self.kept: dict[Role, dict[str, Kept]] = {}

    def __repr__(self) -> str:
        return "; ".join(f"{role} {_shapes(kept)}" for role, kept in self.kept.items())

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
        kept = self.kept.get(role)
        if not kept:
            raise LookupError(f"there is no {role} of {module.name!r}: {module.why(module.name, role)}")
        values = {path: one.value(f"the {role} of {module.name!r}") for path, one in kept.items()}
        return values[""] if list(values) == [""] else values


@dataclass
class Kept:
    """A tensor, and, where it is no copy, its version when it was captured."""

    tensor: Tensor
    version: int | None

    def value(self, what: str) -> Tensor:
        """The tensor; RuntimeError where it is not any more what was captured."""
        if self.version is not None and self.tensor._version != self.version:
            raise RuntimeError(f"{what} was changed in place after it was captured: capture it with copy=True")
        return self.tensor


@dataclass
class Keeper:
    """How tensors are kept."""

    copy: bool
    device: str | torch.device | None

    def keep(self, tensor: Tensor) -> Kept:
        """The tensor as it is now, or, of one that is no copy, with what tells a later change."""
        # An inference tensor has no version that would tell a change.
        if self.copy or tensor.is_inference():
            return Kept(tensor.detach().to(self.device or tensor.device, copy=True), None)
        moved = tensor if self.device is None else tensor.to(self.device)
        return Kept(moved, moved._version)


def _shapes(kept: Mapping[str, Kept]) -> str:
    return ", ".join(f"{path} {tuple(one.tensor.shape)}".strip() for path, one in kept.items())


def _described(tensor: Tensor) -> list[str]:
    row = measure(tensor.detach().cpu(), _SUMMARY)
    values = _SUMMARY.values(Moments(*row), [])
    return [f"{value:.4g}" for value in values.values()]
