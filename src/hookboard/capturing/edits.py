"""Rules that change tensors, each a subclass of `EditRule`, and the hooks that apply them in modules."""

import copy
import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from hookboard.base.checks import check_function, check_list, check_name, check_number, check_whole, is_whole, wrong
from hookboard.base.torch_private import in_backward, modules_in, version_of
from hookboard.measure.hooked import EDITS_GRADIENTS, EDITS_VALUES, Hooks, hooked, is_own_call, spare_of
from hookboard.model.nested import map_tensors, shape_in_words
from hookboard.model.selection import Patterns, Types, check_selection

EditFunction = Callable[[Tensor], Tensor]
"""Takes a tensor and returns a new one of the same shape, dtype and device; never works in place."""


class EditRule(ABC):
    """Base class of hookboard's own rules. A plain function that maps a tensor to a tensor is a rule as well."""

    @abstractmethod
    def __call__(self, tensor: Tensor) -> Tensor:
        """Return a new tensor of the same shape, dtype and device; the given one stays as it is."""


@dataclass(frozen=True)
class Scale(EditRule):
    """Multiply the tensor by a factor.

    Args:
        factor: The factor. 0 sets everything to zero (NaN and infinity become NaN), -1 flips the sign.

    Examples:
        >>> Scale(2.0)(torch.tensor([1.0, -3.0]))
        tensor([ 2., -6.])
    """

    factor: float

    def __post_init__(self) -> None:
        check_number("factor", self.factor)

    def __call__(self, tensor: Tensor) -> Tensor:
        """Return `tensor * factor`, same shape and dtype."""
        return tensor * self.factor


@dataclass(frozen=True)
class Clamp(EditRule):
    """Limit every element to a range.

    Args:
        min: The lower limit. Default: none.
        max: The upper limit. Default: none.

    Raises:
        ValueError: Neither limit is given, or `min` is above `max`.

    Examples:
        >>> Clamp(min=0.0)(torch.tensor([1.0, -3.0]))
        tensor([1., 0.])
    """

    min: float | None = None
    max: float | None = None

    def __post_init__(self) -> None:
        limits = {"min": self.min, "max": self.max}
        for option, limit in limits.items():
            check_number(option, limit, "a number, not NaN", lambda limit: not math.isnan(limit), "for no limit")
        bounds = [limit for limit in limits.values() if limit is not None]
        if not bounds or bounds != sorted(bounds):
            raise ValueError(f"min={self.min!r}, max={self.max!r}: pass min, max, or both, with min <= max.")

    def __call__(self, tensor: Tensor) -> Tensor:
        """Return `tensor.clamp(min, max)`, same shape and dtype."""
        return tensor.clamp(self.min, self.max)


@dataclass(frozen=True)
class ClipNorm(EditRule):
    """Scale the tensor down if its L2 norm is larger than a limit, as `torch.nn.utils.clip_grad_norm_` does.

    The norm is that of the whole tensor, all samples together.

    Args:
        max_norm: The limit. Tensors with a norm up to this limit are left unchanged.

    Examples:
        >>> ClipNorm(1.0)(torch.tensor([3.0, 4.0]))
        tensor([0.6000, 0.8000])
    """

    max_norm: float

    def __post_init__(self) -> None:
        check_number("max_norm", self.max_norm, "a number, 0 or more", lambda norm: norm >= 0)

    def __call__(self, tensor: Tensor) -> Tensor:
        """Return `tensor * min(1, max_norm / (norm + 1e-6))`, same shape and dtype."""
        wide = tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
        share: Tensor = self.max_norm / (torch.linalg.vector_norm(wide) + 1e-6)
        return tensor * share.clamp(max=1.0)


@dataclass(frozen=True)
class Zero(EditRule):
    """Set the tensor, or some of its channels, to zero.

    Args:
        channels: The indices along `dim` that are set to zero. Default: everything.
        dim: The dimension of `channels`. In a tensor of shape (n, channels, ...) it is 1; in one of shape (n, tokens,
            features) it is -1.

    Raises:
        ValueError: When the rule is applied, the tensor has no such channel.

    Examples:
        >>> Zero(channels=[1])(torch.ones(1, 3))
        tensor([[1., 0., 1.]])
    """

    channels: Sequence[int] | None = None
    dim: int = 1

    def __post_init__(self) -> None:
        if self.channels is not None:
            check_list("channels", self.channels, is_whole, "a list of indices, as in [3]", "for all")
        check_whole("dim", self.dim, least=None)

    def __call__(self, tensor: Tensor) -> Tensor:
        """Return the tensor with zeros, same shape and dtype; NaN and infinity become zero too."""
        if self.channels is None:
            return tensor.masked_fill(torch.ones((), dtype=torch.bool, device=tensor.device), 0)
        count = tensor.shape[self.dim] if -tensor.ndim <= self.dim < tensor.ndim else 0
        beyond = next((channel for channel in self.channels if not -count <= channel < count), None)
        if beyond is not None:
            raise ValueError(
                f"{self!r}: channel index {beyond} is out of range for a tensor of shape {tuple(tensor.shape)}, which "
                f"has {count} channels along dim {self.dim}"
            )
        return tensor.index_fill(self.dim, torch.tensor(list(self.channels), device=tensor.device), 0)


@dataclass(frozen=True)
class Noise(EditRule):
    """Add normal noise with mean 0.

    The noise comes from the rule's own generator on each device, so that the random state of the run does not change.
    Inputs and outputs of a checkpointed module cannot have noise: the recomputation would draw other numbers.

    Args:
        std: The standard deviation of the noise.
        seed: The seed of the generators. A copied or unpickled rule goes on where this one is.

    Examples:
        >>> before = torch.get_rng_state()
        >>> Noise(0.1)(torch.zeros(2)).ne(0).all(), torch.get_rng_state().equal(before)
        (tensor(True), True)
    """

    std: float
    seed: int = 0
    _generators: dict[torch.device, torch.Generator] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        check_number("std", self.std, "a finite number, 0 or more", lambda std: 0 <= std < math.inf)
        valid = "a whole number from 0 to 2**64 - 1"
        check_number("seed", self.seed, valid, lambda seed: is_whole(seed) and 0 <= seed < 2**64)

    def __call__(self, tensor: Tensor) -> Tensor:
        """Return `tensor` plus noise, same shape and dtype."""
        if tensor.device not in self._generators:
            self._generators[tensor.device] = torch.Generator(tensor.device).manual_seed(int(self.seed))
        generator = self._generators[tensor.device]
        noise = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype, device=tensor.device)
        return tensor + self.std * noise


@dataclass(frozen=True, eq=False)
class Replace(EditRule):
    """Replace the tensor with a stored one ("activation patching").

    Args:
        value: A tensor of the same shape. It is moved to the device and dtype of the tensor that it replaces.

    Examples:
        >>> Replace(torch.ones(2))(torch.zeros(2))
        tensor([1., 1.])
    """

    value: Tensor

    def __post_init__(self) -> None:
        if not isinstance(self.value, Tensor):
            raise wrong("value", self.value, "a tensor")

    def __call__(self, tensor: Tensor) -> Tensor:
        """Return a copy of `value` in the dtype and on the device of `tensor`."""
        # A copy: what follows may work in place.
        return self.value.to(tensor.device, tensor.dtype, copy=True)


def check_rule(option: str, rule: object) -> None:
    """Check a rule before there is a tensor to change."""
    check_function(
        option, rule, "one of hookboard's rules, as in Zero(), or a function that takes and returns a tensor"
    )


def apply_rule(rule: EditFunction, tensor: Tensor, what: str) -> Tensor:
    """Apply a rule to a tensor; an error if it worked in place, or returned another shape, dtype or device."""
    version = None if torch.compiler.is_compiling() or tensor.is_inference() else version_of(tensor)
    result = rule(tensor)
    if version is not None and version_of(tensor) != version:
        raise RuntimeError(
            f"the rule for the {what} works in place on a tensor that is used elsewhere; it must return a new tensor"
        )
    expected, got = (_description(x) for x in (tensor, result))
    if got != expected:
        raise ValueError(f"the rule for the {what} must return a tensor like its argument, {expected}; got {got}")
    return result


def _description(value: object) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{shape_in_words(value)} {str(value.dtype).removeprefix('torch.')} on {value.device}"


EditRole = Literal["input", "output", "grad_input", "grad_output"]


@dataclass(frozen=True)
class Edit:
    """A rule, and the tensors that it changes.

    Args:
        rule: One of hookboard's rules (docs/capture.md), as in `Zero()`, or any function that takes a tensor and
            returns a new one of the same shape, dtype and device.
        modules: Pattern or patterns for dotted module names. Default: every leaf module, or, with `types`, every module
            of those types.
        types: Class names or classes; subclasses count, and a leading `!` excludes.
        role: Which tensors of a module are changed: `input`, `output`, `grad_input` (the gradient that it passes back
            to its inputs) or `grad_output` (the gradient that arrives at its outputs).
    """

    rule: EditFunction
    modules: Patterns | None = None
    types: Types | None = None
    role: EditRole = "output"

    def __post_init__(self) -> None:
        check_rule("rule", self.rule)
        check_selection(self.modules, self.types)
        check_name("role", self.role, get_args(EditRole))


class Edits:
    """Hooks that apply one rule to some modules; ValueError if one cannot be edited."""

    def __init__(self, modules: Mapping[str, nn.Module], role: EditRole, rule: EditFunction) -> None:
        for name, module in modules.items():
            _check(name, module, role)
        self._modules = dict(modules)
        self._role = role
        self._rule = rule
        self._hooks = ExitStack()
        self._made: set[str] = set()

    def attach(self) -> None:
        """Hook every module."""
        for name, module in self._modules.items():
            self._hooks.enter_context(self._hook(name, module))

    def _hook(self, name: str, module: nn.Module) -> Hooks:
        # What is hooked holds no module, because autograd graphs hold it.
        change = functools.partial(_edited, name, self._role, self._rule, self._made)
        # Values are changed before other hooks read them, gradients before earlier hooks do. Of several edits on one
        # module, the one attached first applies first.
        place = EDITS_GRADIENTS if self._role.startswith("grad") else EDITS_VALUES
        if self._role.endswith("input"):
            return hooked(module, lambda _, args, kwargs: change((args, kwargs)), place=place)
        return hooked(module, after=lambda _, args, output: change(output), place=place)

    def detach(self) -> None:
        """Remove every hook."""
        self._hooks.close()

    def check_made(self) -> None:
        """Raise a LookupError if the rule was applied to no tensor of some module; that it changed one is not asked."""
        names = [repr(name) for name in self._modules if name not in self._made]
        if names:
            is_gradient = self._role.startswith("grad")
            cause = "no gradient reached the module" if is_gradient else "no call to the module passed a tensor"
            raise LookupError(f"the edit of the {self._role} was never applied to {', '.join(names)}: {cause}")


def _check(name: str, module: nn.Module, role: EditRole) -> None:
    if isinstance(module, torch.jit.ScriptModule):
        raise ValueError(f"{name!r} cannot be edited: hooks never fire in a TorchScript module")
    if role == "grad_input" and any(getattr(part, "inplace", False) for part in modules_in(module).values()):
        raise ValueError(
            f"the grad_input of {name!r} cannot be edited: the module works in place on a tensor that may "
            "be used elsewhere"
        )


def _edited(name: str, role: EditRole, rule: EditFunction, made: set[str], value: Any) -> Any:
    """Apply a rule to the tensors, or their gradients, that a module takes or returns, and add its name to `made`."""
    # A call of hookboard's own leaves the rule as it is, except for closures and globals, and is not counted.
    if is_own_call():  # decided now, for the gradient too: backward may run in another thread
        rule, made = spare_of(rule, copy.deepcopy), set()

    def change(tensor: Tensor) -> Tensor:
        if isinstance(rule, Noise) and role in ("input", "output") and in_backward():
            raise RuntimeError(f"{name!r} is checkpointed, so its recomputation would draw different noise")
        made.add(name)
        return apply_rule(rule, tensor, f"{role} of {name!r}")

    if role in ("grad_input", "grad_output"):
        return map_tensors(lambda t: edited_gradient(t, change) if t.requires_grad else t, value)
    return map_tensors(lambda t: change(t) if t.is_floating_point() or t.is_complex() else t, value)


def edited_gradient(tensor: Tensor, change: EditFunction) -> Tensor:
    """Copy a tensor, into memory of its own, so that `change` is applied to the gradient that flows back through it."""
    copy: Tensor = _EditedGradient.apply(tensor, change)
    return copy


class _EditedGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, change: EditFunction) -> Tensor:
        ctx.change = change
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return ctx.change(grad), None
