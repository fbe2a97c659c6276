"""Hooks that change tensors on their way through modules."""

import copy
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from hookboard.checks import check_name
from hookboard.editing.rules import Noise, Rule, apply_rule, check_rule
from hookboard.hooks import EDITS_GRADIENTS, EDITS_VALUES, is_own_call, sort_hooks, spare_of
from hookboard.nested import map_tensors
from hookboard.selection import Patterns, Types, check_selection
from hookboard.torch_private import forward_hooks_of, forward_pre_hooks_of, in_backward

EditRole = Literal["input", "output", "grad_input", "grad_output"]


@dataclass(frozen=True)
class Edit:
    """A rule, and the tensors that it changes.

    Args:
        rule: `Scale`, `Clamp`, `ClipNorm`, `Zero`, `Noise`, `Replace`, or any function that takes a tensor and returns
            a new one of the same shape, dtype and device.
        modules: Pattern or patterns over dotted module names. Left out: every leaf module, or, with `types`, every
            module of those types.
        types: Class names or classes; subclasses count, a leading `!` excludes.
        role: Which tensors of a module are changed: `input`, `output`, `grad_input` (the gradient that it passes back
            to its inputs) or `grad_output` (the gradient that arrives at its outputs).
    """

    rule: Rule
    modules: Patterns | None = None
    types: Types | None = None
    role: EditRole = "output"

    def __post_init__(self) -> None:
        check_rule("rule", self.rule)
        check_selection(self.modules, self.types)
        check_name("role", self.role, get_args(EditRole))


class Edits:
    """The hooks that apply one rule to some modules.

    Values are changed before other hooks read them; gradients before hooks that were there earlier read them. If
    several edits are on one module, the one that was attached first applies first.

    A call of our own (`hookboard.hooks.own_call`) is edited too, including its gradients, but by a copy of the rule.
    Afterwards the rule is as it was, and `check_made` does not count this call. Rules are copied with `copy.deepcopy`,
    `Noise` with the state of its generators. State that a plain function keeps in a closure or a global is not copied.

    Args:
        modules: name to module.
        role: which of their tensors are changed.
        rule: the change, applied to each floating-point or complex tensor.
    """

    def __init__(self, modules: Mapping[str, nn.Module], role: EditRole, rule: Rule) -> None:
        self._modules = dict(modules)
        self._role = role
        self._rule = rule
        self._hooks = ExitStack()
        self._made: set[str] = set()

    def attach(self) -> None:
        """Hook every module.

        Raises:
            ValueError: one of them cannot be edited; then none is hooked.
        """
        for name, module in self._modules.items():
            _check(name, module, self._role)
        for name, module in self._modules.items():
            hook = _EditHook(name, self._role, self._rule, self._made)
            if self._role in ("output", "grad_output"):
                self._hooks.enter_context(module.register_forward_hook(hook.after))
                sort_hooks(forward_hooks_of(module))
            else:
                self._hooks.enter_context(module.register_forward_pre_hook(hook.before, with_kwargs=True))
                sort_hooks(forward_pre_hooks_of(module))

    def detach(self) -> None:
        """Remove every hook."""
        self._hooks.close()

    def check_made(self) -> None:
        """Check that the edit has changed at least one tensor of every module.

        Raises:
            LookupError: it has changed nothing of some module.
        """
        names = [repr(name) for name in self._modules if name not in self._made]
        if names:
            is_gradient = self._role.startswith("grad")
            cause = "no gradient came to it" if is_gradient else "it was not called, or only without tensors"
            raise LookupError(f"the edit of the {self._role} of {', '.join(names)} changed nothing: {cause}")


def _check(name: str, module: nn.Module, role: EditRole) -> None:
    if isinstance(module, torch.jit.ScriptModule):
        raise ValueError(f"{name!r} cannot be edited: hooks never fire in a TorchScript module")
    if role == "grad_input" and any(getattr(part, "inplace", False) for part in module.modules()):
        raise ValueError(
            f"the grad_input of {name!r} cannot be edited: it works in place, on a tensor that others may use"
        )


class _EditHook:
    """The hook of one module. It holds no module, because autograd graphs hold the hook. A copy of it does nothing."""

    def __init__(
        self, name: str = "", role: EditRole | None = None, rule: Rule | None = None, made: Any = None
    ) -> None:
        self.name = name
        self.role = role
        self.rule = rule
        self.made = made

    @property
    def place_among_hooks(self) -> int:
        return EDITS_GRADIENTS if self.role in ("grad_input", "grad_output") else EDITS_VALUES

    def __reduce__(self) -> tuple[Any, ...]:
        return _EditHook, ()

    def after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        return self._changed(output)

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._changed((args, kwargs))

    def _changed(self, value: Any) -> Any:
        if self.rule is None:
            return None
        # Decided now, for the gradient too: backward may run in another thread.
        rule, made = (spare_of(self.rule, _copied), set()) if is_own_call() else (self.rule, self.made)

        def change(tensor: Tensor) -> Tensor:
            return self._apply(rule, tensor, made)

        if self.role in ("grad_input", "grad_output"):
            return map_tensors(lambda t: edited_gradient(t, change) if t.requires_grad else t, value)
        return map_tensors(lambda t: change(t) if t.is_floating_point() or t.is_complex() else t, value)

    def _apply(self, rule: Rule, tensor: Tensor, made: set[str]) -> Tensor:
        if isinstance(rule, Noise) and self.role in ("input", "output") and in_backward():
            raise RuntimeError(f"{self.name!r} is checkpointed: its recomputation would draw other noise")
        made.add(self.name)
        return apply_rule(rule, tensor, f"{self.role} of {self.name!r}")


def _copied(rule: Rule) -> Rule:
    """A copy of the rule with its current state."""
    if isinstance(rule, Noise):
        return rule.with_its_state()
    try:
        return copy.deepcopy(rule)
    except Exception as error:
        raise RuntimeError(
            f"hookboard calls the model once more with a copy of the rule {rule!r}, which cannot be copied: {error}"
        ) from error


def edited_gradient(tensor: Tensor, change: Rule) -> Tensor:
    """A copy of the tensor whose gradient is changed on its way back.

    Args:
        tensor: any tensor that requires a gradient.
        change: takes the gradient of the copy and returns the gradient of `tensor`, same shape and dtype.

    Returns:
        A copy with its own memory (not a view), so that it may be changed in place.
    """
    copy: Tensor = _EditedGradient.apply(tensor, change)
    return copy


class _EditedGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, change: Rule) -> Tensor:
        ctx.change = change
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return ctx.change(grad), None
