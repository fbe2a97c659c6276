"""Mistakes of porting that are planted in a model: in which module, and what is changed there."""

import copy
import random
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hookboard.model.nested import map_tensors, tensors_in

FEW_CHANGED = 1e-4
"""A mistake that changes what its module returns by less than this, relative to its norm, is not planted."""

Change = Callable[[nn.Module, str], None]
"""Plants a mistake in the module of this name in a model."""


def _set(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, own = name.rpartition(".")
    setattr(model.get_submodule(parent), own, module)


def _epsilon(model: nn.Module, name: str) -> None:
    module: Any = model.get_submodule(name)
    attribute = next(one for one in EPSILONS if hasattr(module, one))
    setattr(module, attribute, max(getattr(module, attribute) * 1000, 1e-3))


def _transposed(model: nn.Module, name: str) -> None:
    weight: Any = model.get_submodule(name).weight
    weight.copy_(weight.t().clone())


def _rolled(model: nn.Module, name: str) -> None:
    weight: Any = model.get_submodule(name).weight
    weight.copy_(weight.roll(1, 0))


def _no_bias(model: nn.Module, name: str) -> None:
    bias: Any = model.get_submodule(name).bias
    bias.zero_()


def _statistics(model: nn.Module, name: str) -> None:
    variance: Any = model.get_submodule(name).running_var
    variance.mul_(1.02)


def _activation(model: nn.Module, name: str) -> None:
    kind = type(model.get_submodule(name)).__name__
    _set(model, name, nn.GELU("tanh") if "GELU" in kind and "ELUActivation" in kind + "Activation" else nn.SiLU())


def _dropout(model: nn.Module, name: str) -> None:
    model.get_submodule(name).train()


def _padding(model: nn.Module, name: str) -> None:
    conv: Any = model.get_submodule(name)
    conv.padding_mode = "replicate"


def _scale(model: nn.Module, name: str) -> None:
    module: Any = model.get_submodule(name)
    attribute = next(one for one in SCALES if isinstance(getattr(module, one, None), float))
    setattr(module, attribute, getattr(module, attribute) * 1.3)


def _changed_forward(model: nn.Module, name: str, change: Callable[[Any, Any], Any]) -> None:
    module = model.get_submodule(name)
    kind = type(module)

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return change(args[0] if args else next(iter(kwargs.values())), kind.forward(self, *args, **kwargs))

    module.forward = types.MethodType(forward, module)  # type: ignore[method-assign]


def _scaled(model: nn.Module, name: str) -> None:
    _changed_forward(model, name, lambda given, output: map_tensors(_times, output))


def _times(tensor: Tensor) -> Tensor:
    return tensor * 1.01 if tensor.is_floating_point() else tensor


def _shifted(model: nn.Module, name: str) -> None:
    _changed_forward(model, name, lambda given, output: output.roll(1, 1))


def _skipped(model: nn.Module, name: str) -> None:
    module = model.get_submodule(name)
    module.forward = types.MethodType(lambda self, x, *args, **kwargs: x, module)  # type: ignore[method-assign]


EPSILONS = ("eps", "variance_epsilon", "epsilon")
SCALES = ("scale", "scaling", "scale_attn", "inv_norm_factor", "attn_scale", "softmax_scale")


@dataclass(frozen=True)
class Seen:
    """What a module of the left model was given and returned in its first call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any
    calls: list[int] = field(default_factory=lambda: [0])


def _is_square(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) and module.in_features == module.out_features


def _keeps_shape(seen: Seen) -> bool:
    given = next(iter(seen.args), None)
    return (
        isinstance(given, Tensor)
        and isinstance(seen.output, Tensor)
        and given.shape == seen.output.shape
        and given.data_ptr() != seen.output.data_ptr()
    )


def _has_bias(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear | nn.Conv2d) and module.bias is not None


def _pads(module: nn.Module) -> bool:
    return type(module) is nn.Conv2d and isinstance(module.padding, tuple) and any(module.padding)


def _norms(module: nn.Module) -> bool:
    return any(isinstance(getattr(module, name, None), float) for name in EPSILONS)


def _activates(module: nn.Module) -> bool:
    return isinstance(module, nn.ReLU | nn.GELU | nn.Hardswish | nn.ReLU6) or "GELUActivation" in type(module).__name__


def _drops(module: nn.Module) -> bool:
    return isinstance(module, nn.Dropout) and module.p > 0


def _scales(module: nn.Module) -> bool:
    return any(isinstance(getattr(module, name, None), float) for name in SCALES)


def _has_modules(module: nn.Module) -> bool:
    return any(True for _ in module.children())


MISTAKES: dict[str, tuple[Callable[[nn.Module, Seen], bool], Change]] = {
    "another epsilon": (lambda module, seen: _norms(module), _epsilon),
    "weight transposed": (lambda module, seen: _is_square(module), _transposed),
    "outputs in another order": (lambda module, seen: isinstance(module, nn.Linear | nn.Conv2d), _rolled),
    "bias forgotten": (lambda module, seen: _has_bias(module), _no_bias),
    "running statistics": (lambda module, seen: isinstance(module, nn.BatchNorm2d), _statistics),
    "another activation": (lambda module, seen: _activates(module), _activation),
    "dropout left on": (lambda module, seen: _drops(module), _dropout),
    "another padding": (lambda module, seen: _pads(module), _padding),
    "another scale of scores": (lambda module, seen: _scales(module), _scale),
    "output scaled": (lambda module, seen: _has_modules(module), _scaled),
    "shifted by one": (lambda module, seen: isinstance(seen.output, Tensor) and seen.output.dim() > 2, _shifted),
    "block skipped": (lambda module, seen: _has_modules(module) and _keeps_shape(seen), _skipped),
}
"""Name of a mistake to where it can be planted, and what plants it."""


@dataclass(frozen=True)
class Planted:
    """A mistake in a model.

    Args:
        kind: the name of the mistake.
        module: the name of the module that has it.
        model: the model with it.
    """

    kind: str
    module: str
    model: nn.Module


def seen_in(model: nn.Module, call: Callable[[nn.Module], Any]) -> dict[str, Seen]:
    """Run a model with hooks of torch's own, and return the first call of each of its modules."""
    found: dict[str, Seen] = {}
    handles = []
    for name, module in model.named_modules():

        def keep(module: nn.Module, args: Any, kwargs: Any, name: str = name) -> None:
            args, kwargs = map_tensors(torch.Tensor.clone, (args, kwargs))
            found.setdefault(name, Seen(args, kwargs, None))

        def keep_output(module: nn.Module, args: Any, output: Any, name: str = name) -> None:
            found[name].calls[0] += 1
            if found[name].output is None:
                found[name] = Seen(found[name].args, found[name].kwargs, map_tensors(torch.Tensor.clone, output), [1])

        handles.append(module.register_forward_pre_hook(keep, with_kwargs=True))
        handles.append(module.register_forward_hook(keep_output))
    with torch.no_grad():
        call(model)
    for handle in handles:
        handle.remove()
    return found


def planted_in(model: nn.Module, call: Callable[[nn.Module], Any], count: int, seed: str) -> Iterator[Planted]:
    """Yield copies of a model with one mistake each, of as many kinds as can be.

    A mistake counts only if its module, given what it is given in the right model, returns something else: that is
    found here by calling the module alone, without `compare`.
    """
    rng = random.Random(seed)
    seen = seen_in(model, call)
    kinds = list(MISTAKES)
    rng.shuffle(kinds)
    for kind in kinds:
        applies, change = MISTAKES[kind]
        names = [name for name in seen if name and applies(model.get_submodule(name), seen[name])]
        rng.shuffle(names)
        for name in names[:3]:
            other = copy.deepcopy(model)
            with torch.no_grad():
                change(other, name)
                torch.manual_seed(0)
                args, kwargs = map_tensors(torch.Tensor.clone, (seen[name].args, seen[name].kwargs))
                output = other.get_submodule(name)(*args, **kwargs)
            if kind == "block skipped" or _apart(seen[name].output, output) > FEW_CHANGED:
                yield Planted(kind, name, other)
                count -= 1
                break
        if not count:
            return


def _apart(left: Any, right: Any) -> float:
    pairs = list(zip(tensors_in(left), tensors_in(right), strict=False))
    far = [
        float((one.double() - other.double()).norm() / one.double().norm().clamp(min=1e-30))
        for (_, one), (_, other) in pairs
        if one.shape == other.shape and one.is_floating_point()
    ]
    return max(far, default=0.0)
