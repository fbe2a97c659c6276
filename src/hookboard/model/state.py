"""Saves the state of modules and restores it: parameters, buffers, tensors and containers in their attributes."""

import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import singledispatch
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookboard.base.torch_private import buffers_in, buffers_of, children_of, parameters_in, parameters_of, wrapped_by

MAX_OBJECTS = 1_000_000
"""Maximum number of objects that are visited; numbers and strings do not count."""

_CONSTANT = frozenset({bool, int, float, complex, str, bytes, range, slice, type(None), torch.Size, torch.dtype})
_OF_TORCH = frozenset(nn.Module().__dict__) - {"training"}
"""Attributes that every module has: its hooks, its parameters and the modules inside it among them."""


Undo = list[tuple[Any, ...]]
"""Functions with their arguments, to be called in reverse order. An `ExitStack` takes several times as long."""


class State:
    """Keeps the present state of a module and all modules inside it until `restore`.

    It saves parameters, buffers, the attributes of modules, and in these the content of tensors, NumPy arrays, lists,
    dicts, sets, deques and tuples, and the state of random generators. Each object is saved once and restored in place.
    It does not look into other objects, such as one of a class of the user's: what the code does to those stays.

    Args:
        held: the module, and anything else that may change.
        with_weights: save parameters too, and set their gradients to None until `restore`.

    Raises:
        RuntimeError: more than MAX_OBJECTS objects can be reached.
    """

    def __init__(self, *held: object, with_weights: bool = False) -> None:
        self._undo: Undo = []
        try:
            self._keep_all(held, with_weights)
        except BaseException:
            self.restore()  # gradients are away
            raise

    def _keep_all(self, held: Iterable[object], with_weights: bool) -> None:
        seen: dict[int, object] = {}
        waiting: list[object] = list(held)
        while waiting:
            value = waiting.pop()
            if type(value) in _CONSTANT or id(value) in seen:
                continue
            seen[id(value)] = value
            if len(seen) > MAX_OBJECTS:
                raise RuntimeError(
                    f"the model holds more than {MAX_OBJECTS} objects in its attributes, too many to restore after "
                    "calling it again"
                )
            if with_weights and isinstance(value, nn.Parameter):
                waiting.extend(_keep_weight(value, self._undo))
            else:
                waiting.extend(_keep(value, self._undo))

    def restore(self) -> None:
        """Restore everything that has changed. Works only once.

        If something cannot be restored, the rest is restored first; then the first error is raised.
        """
        errors: list[Exception] = []
        with torch.no_grad():
            while self._undo:
                function, *given = self._undo.pop()
                try:
                    function(*given)
                except Exception as error:  # raised below, once all else is restored
                    errors.append(error)
        if errors:
            raise errors[0]


@contextmanager
def same_random_state() -> Iterator[None]:
    """Restore the random state of Python, NumPy and torch when the context ends, even after an error.

    Of torch: that of the CPU, and of all CUDA devices if CUDA was in use when the context began.
    """
    of_python, of_numpy = random.getstate(), np.random.get_state()
    # The CPU's generator, and those of all CUDA devices if CUDA is in use.
    with torch.random.fork_rng(range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []):
        try:
            yield
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)


@singledispatch
def _keep(value: Any, undo: Undo) -> Iterable[object]:
    """Register in `undo` how to restore the value.

    Returns:
        The objects that it holds.
    """
    return []


@_keep.register(nn.Parameter)
def _keep_nothing(value: Any, undo: Undo) -> Iterable[object]:
    return []


@_keep.register
def _keep_module(module: nn.Module, undo: Undo) -> Iterable[object]:
    if isinstance(module, torch.jit.ScriptModule):  # gives its tensors as new objects each time
        return [*buffers_in(module).values(), *parameters_in(module).values()]
    buffers = buffers_of(module)
    undo.append((refill, buffers, dict(buffers)))
    own = {name: value for name, value in module.__dict__.items() if name not in _OF_TORCH}
    undo.append((refill, module.__dict__, own, _OF_TORCH))
    for name in _OF_TORCH:  # some models add hooks or layers when they are called first, and note that they have
        if isinstance(held := module.__dict__.get(name), dict):
            undo.append((refill, held, dict(held)))
    return [*children_of(module).values(), *parameters_of(module).values(), *buffers.values(), *own.values()]


@_keep.register
def _keep_tensor(tensor: Tensor, undo: Undo) -> Iterable[object]:
    if type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        return wrapped_by(tensor)
    if tensor.is_nested:
        return tensor.detach().unbind()  # views
    if not tensor.is_meta:
        grad = tensor.grad if tensor.is_leaf else None
        undo.append((_rewrite, tensor, tensor.data, tensor.detach().clone(), tensor.requires_grad, grad))
    return []


def _keep_weight(weight: nn.Parameter, undo: Undo) -> Iterable[object]:
    if is_lazy(weight):
        return []
    undo.append((_set_grad, weight, weight.requires_grad, weight.grad if weight.is_leaf else None))
    weight.grad = None
    return _keep_tensor(weight, undo)


@_keep.register
def _keep_array(values: np.ndarray, undo: Undo) -> Iterable[object]:
    if values.flags.writeable and not isinstance(values, np.memmap) and not values.dtype.hasobject:
        undo.append((np.copyto, values, values.copy()))
    return []


@_keep.register
def _keep_dict(value: dict, undo: Undo) -> Iterable[object]:  # type: ignore[type-arg]  # singledispatch reads it
    before = content_of(value)
    undo.append((refill, value, before))
    return list(before.values())


@_keep.register(list)
@_keep.register(deque)
@_keep.register(set)
def _keep_container(value: Any, undo: Undo) -> Iterable[object]:
    before = list(value)
    undo.append((_exchange, value, before))
    return before


@_keep.register(tuple)
@_keep.register(frozenset)
def _keep_what_it_holds(value: Any, undo: Undo) -> Iterable[object]:
    return list(value)


@_keep.register(torch.Generator)
@_keep.register(np.random.RandomState)
def _keep_generator(generator: Any, undo: Undo) -> Iterable[object]:
    undo.append((generator.set_state, generator.get_state()))
    return []


@_keep.register
def _keep_random(generator: random.Random, undo: Undo) -> Iterable[object]:
    if not isinstance(generator, random.SystemRandom):
        undo.append((generator.setstate, generator.getstate()))
    return []


@_keep.register
def _keep_numpy_generator(generator: np.random.Generator, undo: Undo) -> Iterable[object]:
    undo.append((setattr, generator.bit_generator, "state", generator.bit_generator.state))
    return []


def content_of(value: dict[Any, Any]) -> dict[Any, Any]:
    """Return the items of a dict, in order, as `dict` itself has them: a subclass may override how they are read."""
    return {name: dict.__getitem__(value, name) for name in _base_of(value).__iter__(value)}


def _base_of(value: dict[Any, Any]) -> type[dict[Any, Any]]:
    return OrderedDict if isinstance(value, OrderedDict) else dict


def refill(value: dict[Any, Any], before: dict[Any, Any], leave: frozenset[str] = frozenset()) -> None:
    """Make `value` equal to `before`, in place and in its order, if it differs; keys in `leave` stay as they are."""
    if not value and not before:  # most dicts of a module
        return
    now = {name: held for name, held in content_of(value).items() if name not in leave}
    if list(now) == list(before) and all(now[name] is before[name] for name in now):
        return
    base = _base_of(value)
    for name in now:
        base.__delitem__(value, name)
    for name, held in before.items():
        base.__setitem__(value, name, held)


def _exchange(value: Any, before: list[Any]) -> None:
    now = list(value)
    if len(now) != len(before) or any(one is not other for one, other in zip(now, before, strict=True)):
        value.clear()
        fill: Callable[[Iterable[Any]], None] = value.update if isinstance(value, set) else value.extend
        fill(before)


def _rewrite(tensor: Tensor, held: Tensor, before: Tensor, required_grad: bool, grad: Tensor | None) -> None:
    """Give a tensor the values that it had, in the memory that it had.

    Args:
        tensor: the tensor.
        held: its data then.
        before: a copy of its values then.
        required_grad: whether it required gradients.
        grad: its gradient then.
    """
    if not tensor.is_leaf and not required_grad:
        tensor.detach_()  # changed in place with gradients, it would hold the graph of our call
    if tensor.is_leaf:
        _set_grad(tensor, required_grad, grad)
    if held.layout != torch.strided:  # its memory is that of several tensors
        tensor.data = before
        return
    if tensor.layout != torch.strided or tensor.shape != held.shape or tensor.data_ptr() != held.data_ptr():
        tensor.data = held
    # Batch norm changes its buffers without a new version: only the values tell. To compare them waits for a device.
    if not held.is_cpu or not torch.equal(held, before):
        # Past its version: a graph that holds the tensor gets back the very values that it was built with.
        held.copy_(before)


def _set_grad(tensor: Tensor, required_grad: bool, grad: Tensor | None) -> None:
    if not tensor.is_leaf:
        tensor.detach_()
    if tensor.requires_grad != required_grad:  # of a tensor made in inference mode it cannot even be set to what it is
        tensor.requires_grad_(required_grad)
    if tensor.grad is not grad:
        tensor.grad = grad
