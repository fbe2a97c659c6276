"""The parameters of modules by dotted name, called weights; what modules hold is saved and put back."""

import copy
import random
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from hookboard.base.torch_private import buffers_of, modules_in, parameters_in, parameters_of
from hookboard.model.nested import tensors_in

_OF_TORCH = frozenset(nn.Module().__dict__)  # of every module: its hooks, parameters, inner modules and so on

_GENERATORS = torch.Generator, random.Random, np.random.RandomState, np.random.Generator
_COPIED = (Tensor, np.ndarray, dict, list, tuple, set, deque, *_GENERATORS)
"""Types of what is copied; an attribute of another type is shared, such as an object of a class of the user's."""


@contextmanager
def same_state(*owners: Any, with_weights: bool = False) -> Iterator[None]:
    """Put back what modules, parameters and dicts, such as `vars()` of an object, hold when the context ends."""
    # Inside the context, a `copy.deepcopy` replaces what buffers and attributes hold, and gradients are None. What
    # cannot be copied, or is no `_COPIED`, is shared: what the code does to that stays. Of the modules' parameters,
    # values are put back only `with_weights`.
    roots = [one for one in owners if isinstance(one, nn.Module)]
    modules = [part for root in roots for part in modules_in(root).values()]
    own = [p for root in roots for p in parameters_in(root).values()]
    weights = [one for one in owners if isinstance(one, nn.Parameter)] + (own if with_weights else [])
    # Torch refuses to write what is no leaf, as in a copy of a scripted module, or was made in inference mode.
    weights = [weight for weight in weights if not is_lazy(weight) and weight.is_leaf and not weight.is_inference()]
    memo: dict[int, Any] = {id(one): one for one in (*modules, *own, *weights)}
    # A TorchScript module's buffers are no dict, and stay.
    attributes = [one for one in (*map(vars, modules), *map(buffers_of, modules), *owners) if isinstance(one, dict)]
    # Some models add hooks or layers when they are called first, and note that they have.
    parts = [part for module in modules for name in _OF_TORCH if isinstance(part := vars(module).get(name), dict)]
    dicts = [(one, dict(one)) for one in (*attributes, *parts)]
    values = [(one, one.data, one.detach().clone(), one.requires_grad, one.grad) for one in weights]
    try:
        for weight in weights:
            weight.grad = None
        for one in attributes:
            own_values = {name: value for name, value in one.items() if name not in _OF_TORCH}
            one.update({name: copied(value, memo) for name, value in own_values.items() if isinstance(value, _COPIED)})
        yield
    finally:
        for now, before in dicts:
            if list(now) != list(before):  # also in their order
                now.clear()
            now.update(before)
        for weight, own_data, before_it, required_grad, gradient in values:
            weight.grad = None  # of another type, it would not let the data be put back
            if weight.shape != own_data.shape or weight.data_ptr() != own_data.data_ptr():
                weight.data = own_data
            # Past its version: a graph that holds the tensor gets back the very values that it was built with.
            own_data.copy_(before_it)
            weight.requires_grad_(required_grad).grad = gradient


def copied(value: Any, memo: dict[int, Any] | None = None) -> Any:
    """Return `copy.deepcopy(value, memo)`, with copies of tensors that it refuses; the value itself if it fails."""
    memo = {} if memo is None else memo
    try:
        for _, tensor in tensors_in(value):  # `deepcopy` refuses nested ones, and what is part of a graph
            twin = tensor.detach().clone().requires_grad_(tensor.is_leaf and tensor.requires_grad)
            memo.setdefault(id(tensor), twin)
        return copy.deepcopy(value, memo)
    except Exception:  # of the user's class, or it holds itself
        return value


@contextmanager
def same_random_state() -> Iterator[None]:
    """Restore the random state of Python, NumPy and torch when the context ends, even after an error."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    # The CPU's generator, and those of all CUDA devices if CUDA is in use.
    with torch.random.fork_rng(range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []):
        try:
            yield
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)


def weights_of(modules: Mapping[str, nn.Module]) -> dict[str, Parameter]:
    """Return the parameters that these modules own themselves, by dotted name; a shared one has its first name.

    >>> list(weights_of({"head": nn.Linear(2, 1)}))
    ['head.weight', 'head.bias']
    """
    found: dict[int, tuple[str, Parameter]] = {}
    for module_name, module in modules.items():
        for name, parameter in nn.Module.named_parameters(module, module_name, recurse=False):
            found.setdefault(id(parameter), (name, parameter))
    return dict(found.values())


def are_unchanged(weights: Mapping[str, Parameter], modules: Mapping[str, nn.Module]) -> bool:
    """Return True if the modules own just these weights, faster than `weights_of`; it may be False without a change.

    >>> head = nn.Linear(2, 1)
    >>> are_unchanged(weights_of({"head": head}), {"head": head})
    True
    """
    own = ((name, id(one)) for each in modules.values() for name, one in parameters_of(each).items() if one is not None)
    return list(dict.fromkeys(own)) == [(name.rpartition(".")[2], id(one)) for name, one in weights.items()]


def stepped_by(optimizer: Optimizer, weights: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """Return the weights that this optimizer updates."""
    stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return {name: weight for name, weight in weights.items() if id(weight) in stepped}


def why_silent(weight: Parameter) -> str:
    """Return the most likely reason why a weight had no gradient or no update in a step."""
    if not weight.requires_grad:
        return "the parameter is frozen (requires_grad is False)"
    if weight.grad is None:
        return "the parameter received no gradient in this step"
    return "the parameter is empty, or not in any optimizer that stepped"
