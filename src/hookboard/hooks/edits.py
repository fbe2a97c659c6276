"""Hooks that change tensors on their way through modules."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hookboard.hooks.compiled import in_backward
from hookboard.hooks.rules import Noise, Rule, apply_rule
from hookboard.nested import map_tensors
from hookboard.selection import Patterns, Types

EditRole = Literal["input", "output", "grad_input", "grad_output"]


@dataclass(frozen=True)
class Edit:
    """A rule, and where it applies.

    Args:
        rule: one of those above, or any function that takes a tensor and returns another of the same shape.
        modules: pattern or patterns over dotted module names; left out: every leaf module, or, with `types`, every
            module of those types.
        types: class names or classes.
        role: which tensors of a module: `input`, `output`, `grad_input` (what it passes back) or `grad_output` (what
            arrives at its output).
    """

    rule: Rule
    modules: Patterns | None = None
    types: Types | None = None
    role: EditRole = "output"


class Edits:
    """The hooks that apply one rule to some modules. Every handle has this one owner.

    Values are changed before other hooks read them; gradients before hooks that were there earlier read them. Of
    several edits on one module the first that was attached comes first.

    Args:
        modules: name to module.
        role: which of their tensors.
        rule: what is done to each floating-point tensor.
    """

    def __init__(self, modules: Mapping[str, nn.Module], role: EditRole, rule: Rule) -> None:
        self._modules = dict(modules)
        self._role = role
        self._rule = rule
        self._handles: list[RemovableHandle] = []
        self._made: set[str] = set()

    def attach(self) -> None:
        """Hook every module.

        Raises:
            ValueError: one of them cannot be edited; then none is hooked.
        """
        for name, module in self._modules.items():
            if isinstance(module, torch.jit.ScriptModule):
                raise ValueError(f"{name!r} cannot be edited: hooks never fire in a TorchScript module")
            if self._role == "grad_input" and any(getattr(part, "inplace", False) for part in module.modules()):
                raise ValueError(
                    f"the grad_input of {name!r} cannot be edited: it works in place, on a tensor that others may use"
                )
        for name, module in self._modules.items():
            hook = _EditHook(name, self._role, self._rule, self._made)
            if self._role in ("output", "grad_output"):
                self._handles.append(module.register_forward_hook(hook.after))
                _sort(module._forward_hooks)
            else:
                self._handles.append(module.register_forward_pre_hook(hook.before, with_kwargs=True))
                _sort(module._forward_pre_hooks)

    def detach(self) -> None:
        """Remove every hook."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def check_made(self) -> None:
        """Make sure that the edit has changed something of every module: a silent no-op would be a lie.

        Raises:
            LookupError: it has not.
        """
        names = [repr(name) for name in self._modules if name not in self._made]
        if names:
            is_gradient = self._role.startswith("grad")
            cause = "no gradient came to it" if is_gradient else "it was not called, or with no tensor"
            raise LookupError(f"the edit of the {self._role} of {', '.join(names)} changed nothing: {cause}")


class _EditHook:
    """Knows neither the module nor the edits: what a graph holds must not hold the model. A copy does nothing."""

    def __init__(
        self, name: str = "", role: EditRole | None = None, rule: Rule | None = None, made: Any = None
    ) -> None:
        self.name = name
        self.role = role
        self.rule = rule
        self.made = made

    def __reduce__(self) -> tuple[Any, ...]:
        return _EditHook, ()

    def after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        return self._changed(output)

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._changed((args, kwargs))

    def _changed(self, value: Any) -> Any:
        if self.rule is None:
            return None
        if self.role in ("grad_input", "grad_output"):
            return map_tensors(lambda t: edited_gradient(t, self._apply) if t.requires_grad else t, value)
        return map_tensors(lambda t: self._apply(t) if t.is_floating_point() or t.is_complex() else t, value)

    def _apply(self, tensor: Tensor) -> Tensor:
        assert self.rule is not None
        if isinstance(self.rule, Noise) and self.role in ("input", "output") and in_backward():
            raise RuntimeError(f"{self.name!r} is checkpointed: the noise of its recomputation would be another")
        self.made.add(self.name)
        return apply_rule(self.rule, tensor, f"{self.role} of {self.name!r}")


def _sort(hooks: dict[int, Callable[..., Any]]) -> None:
    """First the edits of values, in the order of their coming; last those of gradients, which go the other way."""

    def place(key: int) -> tuple[int, int]:
        edit = getattr(hooks[key], "__self__", None)
        if not isinstance(edit, _EditHook):
            return (1, 0)
        return (2, -key) if edit.role in ("grad_input", "grad_output") else (0, key)

    for key in sorted(hooks, key=place):
        hooks[key] = hooks.pop(key)


def edited_gradient(tensor: Tensor, change: Rule) -> Tensor:
    """A copy of the tensor, whose gradient is changed on its way back.

    It is a copy since a view could not be changed in place by what follows.
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
