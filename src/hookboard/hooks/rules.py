"""Rules that change a tensor: what they take and return, and those that are there already."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

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
