"""The raw tensors of a training, taken without any hook on a module: what the oracle computes from.

`nn.Module.__call__` is replaced for the whole run. torch looks for hooks on modules to choose its paths, and sees none.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.amp.grad_scaler import OptState

Slot = tuple[str, str, str]
"""Role, name of the module or parameter, and where in a nested value."""

Step = dict[Slot, list[Tensor]]

WRAPPERS = ("_orig_mod.",)


class Raw(Callback):
    """Keeps every tensor of each optimizer step and validation loop. It must stand first in the list of callbacks."""

    def __init__(self, with_input_gradients: bool) -> None:
        self.with_input_gradients = with_input_gradients
        self.steps: dict[tuple[int, str, int], Step] = {}
        """By the number of the fit, the stage, and the step as Lightning's loggers count or the number of the loop."""
        self.leaves: set[str] = set()
        self.passing: set[str] = set()
        """Modules that returned what they were given, such as dropout in evaluation mode."""
        self.fits = self.loops = 0
        self.step: Step = defaultdict(list)
        self.loop: Step = defaultdict(list)
        self.model: Any = None
        self.before: dict[str, Tensor] = {}

    # Activations and their gradients.

    @contextmanager
    def watching(self) -> Iterator[None]:
        plain = nn.Module.__call__

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            name = self.names.get(id(module)) if self.model is not None else None
            is_again = torch._C._current_graph_task_id() != -1  # a checkpoint computes again what was seen before
            if name is None or not (self.model.stage or is_again):
                return plain(module, *args, **kwargs)
            return self._call(plain, name, module, args, kwargs, is_again)

        nn.Module.__call__ = call
        try:
            yield
        finally:
            nn.Module.__call__ = plain

    def _call(self, plain: Any, name: str, module: nn.Module, args: Any, kwargs: Any, is_again: bool) -> Any:
        trains = self.model.stage != "validate"
        into = self.step if trains else self.loop
        # What a mapping of the arguments is called is part of what a user sees, so it is written out here once more.
        arguments = args[0] if len(args) == 1 and not kwargs else {**dict(enumerate(args)), **kwargs}
        versions = []
        for path, tensor in leaves_of(arguments):
            if not is_again:
                into["input", name, path].append(tensor.detach().clone())
        if self.with_input_gradients and trains and torch.is_grad_enabled():
            args, kwargs = replaced((args, kwargs), lambda x: aside(x) if x.requires_grad else x)
            arguments = args[0] if len(args) == 1 and not kwargs else {**dict(enumerate(args)), **kwargs}
            versions = [(path, tensor, tensor._version) for path, tensor in leaves_of(arguments)]
        output = plain(module, *args, **kwargs)
        if any(tensor is given for _, tensor in leaves_of(output) for _, given in leaves_of(arguments)):
            self.passing.add(name)
        for path, tensor, version in versions:
            if tensor.requires_grad and tensor._version == version:
                self._watch(into, ("grad_input", name, path), tensor)
            else:
                into["grad_input", name, path] += []
        if trains:
            output = replaced(output, lambda x: x.clone() if x.requires_grad and x._is_view() else x)
        for path, tensor in leaves_of(output):
            if not is_again:
                into["output", name, path].append(tensor.detach().clone())
            if tensor.requires_grad:
                self._watch(into, ("grad_output", name, path), tensor)
        return output

    def _watch(self, into: Step, slot: Slot, tensor: Tensor) -> None:
        into[slot] += []  # there may be no gradient
        tensor.register_hook(lambda grad: into[slot].append(self._unscaled(grad.detach().clone())))

    def _unscaled(self, grad: Tensor) -> Tensor:
        return grad if self.scale is None else grad.double() / self.scale

    # When.

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.scale: float | None = None
        self.fits += 1
        self.loops = 0
        self.model = pl_module

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin_step()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if not self.before:
            self.before = {name: value.clone() for name, value in weights_of(pl_module).items()}
        self.names = names_of(pl_module)
        leaves = {self.names[id(m)] for m in pl_module.modules() if id(m) in self.names and is_leaf(m)}
        self.leaves |= {name for name in leaves if "parametrizations" not in name}

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self.scale = scaler.get_scale() if scaler is not None else None

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.scale = None

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        for name, value in weights_of(pl_module).items():
            self.before.setdefault(name, value.clone())  # what was lazy has come since
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        # An optimizer that unscales by itself, and one whose batch was skipped, are given scaled gradients.
        is_scaled = scaler is not None and scaler._per_optimizer_states[id(optimizer)]["stage"] is OptState.READY
        scale = scaler.get_scale() if is_scaled else 1.0
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for name, parameter in parameters_of(pl_module).items():
            if parameter.grad is not None and id(parameter) in held:
                self.step["parameter_grad", name, ""].append(parameter.grad.detach().double() / scale)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        if trainer.fit_loop._should_accumulate():
            return
        for name, value in weights_of(pl_module).items():
            self.step["parameter", name, ""].append(value.clone())
            if name in self.before and self.before[name].shape == value.shape:
                self.step["parameter_before", name, ""].append(self.before[name])
                self.step["parameter_update", name, ""] += [self.before[name], value.clone()]
        self.steps[self.fits, "train", trainer.fit_loop.epoch_loop._batches_that_stepped] = dict(self.step)
        self._begin_step()

    def _begin_step(self) -> None:
        self.step, self.before = defaultdict(list), {}

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.names = names_of(pl_module)
        self.loop = defaultdict(list)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            self.loops += 1
            self.steps[self.fits, "validate", self.loops] = dict(self.loop)


def leaves_of(value: Any, path: str = "") -> list[tuple[str, Tensor]]:
    """The tensors in a value, with the index, key or field that leads to each."""
    if isinstance(value, Tensor):
        return [(path, value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        items: Any = vars(value).items()
    elif isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, (tuple, list)):
        items = zip(getattr(value, "_fields", range(len(value))), value, strict=True)
    else:
        return []
    return [leaf for key, item in items for leaf in leaves_of(item, f"{path}/{key}" if path else str(key))]


def replaced(value: Any, change: Any) -> Any:
    """The same nested value with other tensors."""
    if isinstance(value, Tensor):
        return change(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(value, **{key: replaced(item, change) for key, item in vars(value).items()})
    if isinstance(value, dict):
        return {key: replaced(item, change) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(replaced(item, change) for item in value)
    return value


def aside(tensor: Tensor) -> Tensor:
    """The same memory as a tensor of its own, so that its gradient is what this use of it gives."""
    return tensor.view_as(tensor) if tensor.layout is torch.strided and not tensor.is_nested else tensor


def names_of(model: nn.Module) -> dict[int, str]:
    """The first name of each module, without the parts that wrappers add; an optimized module is the one it wraps."""
    names = {}
    for name, module in model.named_modules():
        for wrapper in WRAPPERS:
            name = name.replace(wrapper, "").replace(wrapper.rstrip("."), "").rstrip(".")
        if name and type(module).__name__ != "OptimizedModule":
            names.setdefault(id(module), name)
    return names


def is_leaf(module: nn.Module) -> bool:
    return not [name for name, _ in module.named_children() if name != "parametrizations"]


def parameters_of(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters by the names under which they are shown."""
    return {name.replace("_orig_mod.", ""): parameter for name, parameter in model.named_parameters()}


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """The values of the parameters."""
    return {
        name: parameter.detach()
        for name, parameter in parameters_of(model).items()
        if not torch.nn.parameter.is_lazy(parameter)
    }
