"""Rules that change a tensor on its way through a module, and where they apply."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hookboard.compiled import in_backward
from hookboard.nested import map_tensors
from hookboard.selection import Patterns, Types

EditRole = Literal["input", "output", "grad_input", "grad_output"]

Rule = Callable[[Tensor], Tensor]
"""Takes a tensor and returns another of the same shape, type and device; never in place."""


class EditRule(ABC):
    """Base of the rules that are there already; any function from tensor to tensor is as good."""

    @abstractmethod
    def __call__(self, tensor: Tensor) -> Tensor:
        """The changed tensor."""


@dataclass(frozen=True)
class Scale(EditRule):
    """Multiply with a factor.

    >>> Scale(2.0)(torch.tensor([1.0, -3.0]))
    tensor([ 2., -6.])
    """

    factor: float

    def __call__(self, tensor: Tensor) -> Tensor:
        """The changed tensor."""
        return tensor * self.factor


@dataclass(frozen=True)
class Clamp(EditRule):
    """Cut off below `min` and above `max`; None leaves that side as it is.

    >>> Clamp(min=0.0)(torch.tensor([1.0, -3.0]))
    tensor([1., 0.])
    """

    min: float | None = None
    max: float | None = None

    def __call__(self, tensor: Tensor) -> Tensor:
        """The changed tensor."""
        return tensor.clamp(self.min, self.max)


@dataclass(frozen=True)
class ClipNorm(EditRule):
    """Scale the tensor down to this L2 norm where its norm is larger, as `torch.nn.utils.clip_grad_norm_` does.

    >>> ClipNorm(1.0)(torch.tensor([3.0, 4.0]))
    tensor([0.6000, 0.8000])
    """

    max_norm: float

    def __call__(self, tensor: Tensor) -> Tensor:
        """The changed tensor."""
        wide = tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
        share: Tensor = self.max_norm / (torch.linalg.vector_norm(wide) + 1e-6)
        return tensor * share.clamp(max=1.0)


@dataclass(frozen=True)
class Zero(EditRule):
    """Set to zero: everything, or some indices of one dimension, the channels by default.

    >>> Zero(channels=[1])(torch.ones(1, 3))
    tensor([[1., 0., 1.]])
    """

    channels: Sequence[int] | None = None
    dim: int = 1

    def __call__(self, tensor: Tensor) -> Tensor:
        """The changed tensor."""
        if self.channels is None:
            return tensor.masked_fill(torch.ones((), dtype=torch.bool, device=tensor.device), 0)
        return tensor.index_fill(self.dim, torch.tensor(list(self.channels), device=tensor.device), 0)


@dataclass(frozen=True)
class Noise(EditRule):
    """Add normal noise, from a generator of its own: the random state of the run is not touched.

    Inputs and outputs of a checkpointed module cannot have it: the noise of its recomputation would be another.

    >>> before = torch.get_rng_state()
    >>> Noise(0.1)(torch.zeros(2)).ne(0).all(), torch.get_rng_state().equal(before)
    (tensor(True), True)
    """

    std: float
    seed: int = 0
    _generators: dict[torch.device, torch.Generator] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __call__(self, tensor: Tensor) -> Tensor:
        """The changed tensor."""
        if tensor.device not in self._generators:
            self._generators[tensor.device] = torch.Generator(tensor.device).manual_seed(self.seed)
        generator = self._generators[tensor.device]
        noise = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype, device=tensor.device)
        return tensor + self.std * noise

    def __getstate__(self) -> dict[str, Any]:
        """Without the generators, which cannot be copied: a copy starts from the seed."""
        return {"std": self.std, "seed": self.seed, "_generators": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore what `__getstate__` gave."""
        self.__dict__.update(state)


@dataclass(frozen=True, eq=False)
class Replace(EditRule):
    """Put a stored tensor of the same shape in its place ("activation patching").

    >>> Replace(torch.ones(2))(torch.zeros(2))
    tensor([1., 1.])
    """

    value: Tensor

    def __call__(self, tensor: Tensor) -> Tensor:
        """The changed tensor."""
        # A copy: what follows may work in place.
        return self.value.to(tensor.device, tensor.dtype, copy=True)


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


def apply_rule(rule: Rule, tensor: Tensor, what: str) -> Tensor:
    """What the rule makes of a tensor.

    Raises:
        ValueError: it returned something of another shape, type or device.
        RuntimeError: it worked in place.
    """
    version = None if tensor.is_inference() else tensor._version
    result = rule(tensor)
    if version is not None and tensor._version != version:
        raise RuntimeError(f"the rule for the {what} works in place, on a tensor that others need: return a new one")
    given, got = (_description(x) for x in (tensor, result))
    if got != given:
        raise ValueError(f"the rule for the {what} must return a tensor like the one that it takes: {given}, got {got}")
    return result


def _description(value: object) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')} on {value.device}"


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
