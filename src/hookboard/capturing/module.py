"""`CapturedModule`: what was captured of one module, by call and role."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hookboard.layouts import shape_in_words
from hookboard.measure import Moments, measure, plan
from hookboard.sites import Role
from hookboard.torch_private import version_of

Tensors = Tensor | dict[str, Tensor]
"""One tensor, or several by the index or key that leads to each."""

SUMMARY = plan(("mean", "std", "zero_fraction"))


class _OfRoles:
    """The tensors of each role, for one call or for the only one."""

    @property
    def input(self) -> Tensors:
        """The module's input."""
        return self._of("input")

    @property
    def output(self) -> Tensors:
        """The module's output."""
        return self._of("output")

    @property
    def grad_input(self) -> Tensors:
        """The gradient that the module passed back to its input."""
        return self._of("grad_input")

    @property
    def grad_output(self) -> Tensors:
        """The gradient with respect to the module's output."""
        return self._of("grad_output")

    def _of(self, role: Role) -> Tensors:
        raise NotImplementedError


@dataclass
class CapturedModule(_OfRoles):
    """What was captured of one module.

    `input`, `output`, `grad_input` and `grad_output` are the tensors of its only call; if there were several calls, use
    `calls[i].output` and so on. Each is a tensor, or a dict of tensors by index or key if the module has several.
    Reading them raises LookupError if nothing was captured (the message gives the reason) or if there were several
    calls, and RuntimeError if an in-place operation has changed a tensor that was kept with `copy=False`.

    Args:
        name: The module's dotted name.
        kind: The name of its class.
        roles: The roles that were asked for.
        why: Takes name and role, and returns the reason why nothing was captured.
        calls: What was captured of each call, in the order of the calls.
        is_ambiguous: Whether there were gradients that cannot be assigned to a call.
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
        tensors: Tensors = getattr(self.calls[0] if self.calls else Call(self), role)
        return tensors

    def rows(self) -> Iterator[list[str]]:
        """Return the rows of a summary: name, type, tensor (role and call), shape, mean, std, fraction of zeros."""
        for k, call in enumerate(self.calls):
            for role, kept in call.kept.items():
                for path, one in kept.items():
                    which = (f"calls[{k}]." if len(self.calls) > 1 else "") + role + (f" {path}" if path else "")
                    tensor = one.value(f"{role} of {self.name!r}")
                    yield [self.name, self.kind, which, shape_in_words(tensor), *_described(tensor)]


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
                f"{module.name!r} was called several times and recomputed by a checkpoint: it is unknown "
                "which call a gradient belongs to. Checkpoint with use_reentrant=False."
            )
        kept = self.kept.get(role)
        if not kept:
            raise LookupError(f"there is no {role} of {module.name!r}: {module.why(module.name, role)}")
        values = {path: one.value(f"the {role} of {module.name!r}") for path, one in kept.items()}
        return values[""] if list(values) == [""] else values


@dataclass
class Kept:
    """A captured tensor, and its version number at that time if it is not a copy."""

    tensor: Tensor
    version: int | None

    def value(self, what: str) -> Tensor:
        """Return the tensor.

        Raises:
            RuntimeError: it is not a copy, and an in-place operation has changed it since.
        """
        if self.version is not None and version_of(self.tensor) != self.version:
            raise RuntimeError(f"{what} was changed in place after it was captured: capture it with copy=True")
        return self.tensor


@dataclass
class Keeper:
    """How tensors are kept: as copies or not, and on which device (None: where they are)."""

    copy: bool
    device: str | torch.device | None

    def keep(self, tensor: Tensor) -> Kept:
        """Keep the tensor as it is now."""
        # An inference tensor has no version that would tell a change.
        if self.copy or tensor.is_inference():
            given = tensor.detach()
            # Not every kind of tensor can be given to `to`.
            return Kept(given.clone() if self.device is None else given.to(self.device, copy=True), None)
        moved = tensor if self.device is None else tensor.to(self.device)
        return Kept(moved, version_of(moved))


def _shapes(kept: Mapping[str, Kept]) -> str:
    return ", ".join(f"{path} {shape_in_words(one.tensor)}".strip() for path, one in kept.items())


def _described(tensor: Tensor) -> list[str]:
    try:
        moments = Moments(*measure(tensor.detach().cpu(), SUMMARY))
    except (TypeError, RuntimeError):  # it has no values, as a meta tensor
        return ["?"] * len(SUMMARY.names)
    return [f"{value:.4g}" for value in SUMMARY.values(moments, []).values()]
