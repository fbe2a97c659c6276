"""Runs a model once, shows every tensor that its modules take and give, and leaves no trace."""

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DataParallel, DistributedDataParallel

from hookboard.base.torch_private import in_backward, in_transform, is_compiled, modules_in
from hookboard.measure.hooked import hooked, own_call
from hookboard.model.nested import map_tensors, named_inputs, tensors_in
from hookboard.model.state import same_random_state, same_state

Part = Literal["input", "output", "gradient", "weight"]
"""What a module takes, what it returns, the gradient of that or of a weight, or a weight or buffer."""

Loss = Callable[[Any], Tensor]
"""Computes a scalar from what the model returned."""


@dataclass(frozen=True)
class Spot:
    """One tensor of one call of a module."""

    module: str
    call: int  # its number, from 0
    part: Part
    path: str  # where the tensor stands in them, as in `tensors_in`

    def __str__(self) -> str:
        where = " ".join(filter(None, [self.part, self.path]))
        again = f", call {self.call + 1}" if self.call else ""
        return f"{self.module or 'the whole model'} ({where}{again})"


See = Callable[[Spot, Tensor], Tensor | None]
"""Called with each tensor; what it returns takes the tensor's place."""


def watched_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Return the model and its modules whose calls can be seen, by name: none that is compiled or scripted.

    >>> list(watched_modules(nn.Sequential(nn.Linear(2, 2), nn.ReLU())))
    ['', '0', '1']
    """
    found = {"": model}
    hidden = tuple(f"{name}.".lstrip(".") for name, module in modules_in(model).items() if _is_opaque(module))
    for name, module in modules_in(model).items():
        if not f"{name}.".startswith(hidden):
            found.setdefault(plain_name(model, name), module)
    return found


@dataclass
class ModelRunner:
    """Runs a model on these inputs, and backward if there is a loss; each run draws the same random numbers."""

    model: nn.Module
    inputs: Any  # a tuple holds several arguments, a dict those with names
    loss: Loss | None = None  # of what it returned; None: no backward pass
    dtypes: Mapping[str, torch.dtype] = field(default_factory=dict)  # of parameters and buffers; others keep their own

    def __call__(self, see: See, at_end: Callable[[], None]) -> None:
        """Run the model once."""
        model = self.model
        with ExitStack() as until_end:
            until_end.enter_context(torch.inference_mode(False))
            # It takes effect when it is made, not when it is entered: the line above must have saved the mode before.
            until_end.enter_context(torch.set_grad_enabled(self.loss is not None))
            until_end.enter_context(own_call())
            until_end.enter_context(same_random_state())
            # With weights: some models change their own when they are called, such as a momentum encoder.
            until_end.enter_context(same_state(model, with_weights=True))
            until_end.callback(_split_again, model)
            _convert(model, self.dtypes)
            args, kwargs = _arguments(model, self.inputs)
            before, after = until_end.enter_context(shown(model, see))
            args, kwargs = before("", (args, kwargs))
            returned = after("", model(*args, **kwargs))
            if self.loss is not None:
                value = self.loss(returned)
                if not isinstance(value, Tensor):
                    raise TypeError(f"loss must return a tensor; got {type(value).__name__}")
                value.backward()
            at_end()


def _is_opaque(module: nn.Module) -> bool:
    return is_compiled(module) or isinstance(module, torch.jit.ScriptModule)


def plain_name(model: nn.Module, name: str) -> str:
    """Return the name of a module or parameter without the names of wrappers around it and around the model.

    >>> plain_name(torch.nn.DataParallel(nn.Linear(2, 2)), "module.weight")
    'weight'
    """
    name = f"{name}.".replace("_orig_mod.", "").rstrip(".")
    if isinstance(model, DistributedDataParallel | DataParallel):
        name = f"{name}.".removeprefix("module.").rstrip(".")
    return name


def parameters_in(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters by name; a tied one has all its names."""
    return {plain_name(model, name): parameter for name, parameter in model.named_parameters(remove_duplicate=False)}


def buffers_in(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers by name."""
    return {plain_name(model, name): buffer for name, buffer in model.named_buffers(remove_duplicate=False)}


def weights_in(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers by name."""
    return parameters_in(model) | buffers_in(model)


def gradients_in(model: nn.Module) -> dict[str, Tensor | None]:
    """Return the gradient of each parameter by name; None where it has none."""
    return {name: parameter.grad for name, parameter in parameters_in(model).items()}


def _split_again(model: nn.Module) -> None:
    """Reshard the weights of FSDP2 modules: after a forward pass alone, the outermost one still holds them whole."""
    for module in modules_in(model).values():
        if isinstance(module, FSDPModule):
            module.reshard()


def _convert(model: nn.Module, dtypes: Mapping[str, torch.dtype]) -> None:
    """Give parameters and buffers other types; `same_state` puts their own back."""
    for name, parameter in parameters_in(model).items():
        if name in dtypes:
            parameter.data = parameter.data.to(dtypes[name])
    for name, buffer in [*model.named_buffers(remove_duplicate=False)]:
        plain = plain_name(model, name)
        if plain in dtypes:
            above, _, own = name.rpartition(".")
            setattr(model.get_submodule(above), own, buffer.to(dtypes[plain]))


def _arguments(model: nn.Module, inputs: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Return the inputs for a call of this model, as positional arguments and those with names."""
    weights = list(model.parameters())
    floating = next((weight.dtype for weight in weights if weight.is_floating_point()), None)
    complex_ = next((weight.dtype for weight in weights if weight.is_complex()), None)

    def moved(tensor: Tensor) -> Tensor:
        twin = tensor.detach().clone()
        if weights:
            dtype = None  # that of the tensor itself
            if tensor.is_floating_point():
                dtype = floating
            elif tensor.is_complex():
                dtype = complex_
            twin = twin.to(weights[0].device, dtype)
        return twin.requires_grad_(tensor.requires_grad)

    arguments = map_tensors(moved, inputs)
    if isinstance(arguments, tuple):
        return arguments, {}
    return ((), arguments) if isinstance(arguments, Mapping) else ((arguments,), {})


Step = Callable[[str, Any], Any]
"""Shows the tensors of a module, by its name, and returns its arguments or what it returned, with those replaced."""


@contextmanager
def shown(model: nn.Module, see: See) -> Iterator[tuple[Step, Step]]:
    """Show each tensor of each call of a module to `see`, and the gradient of each output."""
    calls: Counter[str] = Counter()

    def replaced(spots: list[tuple[Spot, Tensor]], value: Any) -> Any:
        seen = [see(spot, tensor) for spot, tensor in spots]
        if all(change is None for change in seen):
            return value
        new = iter([tensor if change is None else change for change, (_, tensor) in zip(seen, spots, strict=True)])
        return map_tensors(lambda tensor: next(new), value)

    def before(name: str, arguments: Any) -> Any:
        spots = [
            (Spot(name, calls[name], "input", path), tensor) for path, tensor in tensors_in(named_inputs(*arguments))
        ]
        return replaced(spots, arguments)

    def after(name: str, output: Any) -> Any:
        spots = [(Spot(name, calls[name], "output", path), tensor) for path, tensor in tensors_in(output)]
        # A tensor that several modules hand on has a gradient in each of them.
        new = map_tensors(lambda tensor: tensor.clone() if tensor.requires_grad else tensor, replaced(spots, output))
        for path, tensor in tensors_in(new):
            if tensor.requires_grad:
                spot = Spot(name, calls[name], "gradient", path)
                hooks.enter_context(tensor.register_hook(functools.partial(see, spot)))
        calls[name] += 1
        return new

    def hook_before(name: str, module: nn.Module, args: Any, kwargs: Any) -> Any:
        return None if is_hidden() else before(name, (args, kwargs))

    def hook_after(name: str, module: nn.Module, args: Any, output: Any) -> Any:
        return None if is_hidden() else after(name, output)

    def is_hidden() -> bool:
        # A forward pass inside a backward pass is a recomputation, which was seen the first time; inside vmap and the
        # like tensors have no values.
        return in_backward() or in_transform()

    with ExitStack() as hooks:
        for name, module in watched_modules(model).items():
            if name:
                of_module = functools.partial(hook_before, name), functools.partial(hook_after, name)
                hooks.enter_context(hooked(module, *of_module))
        yield before, after  # to be called before and after the model itself, whose hooks a compiled graph may contain
