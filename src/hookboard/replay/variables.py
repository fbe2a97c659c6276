"""What the code of a model reaches besides its attributes: global variables and those of closures."""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import numpy as np
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

_OF_LIBRARIES = ("site-packages", "dist-packages", "/lib/python", "<frozen")
"""What stands in the path of code whose variables do not change from call to call."""

_CONTAINERS = frozenset({list, dict, set, deque, bytearray, np.ndarray})

_LIBRARY = __name__.partition(".")[0]


class Variables:
    """The variables that the user's code in a model and in its hooks can change.

    Args:
        model: the model.
        others: further objects whose functions run, such as schedulers.
    """

    def __init__(self, model: nn.Module, others: Sequence[object] = ()) -> None:
        self._functions: dict[int, FunctionType] = {}
        self._owners: list[object] = []
        for function in _functions_of(model):
            self._add(function)
        for function in _functions_of_objects(others):
            self._add(function)
        for hook in _hooks_of(model):
            self._add_hook(hook)

    def _add_hook(self, hook: Any) -> None:
        for function in _functions_in(hook):
            self._add(function)
            if isinstance(hook, MethodType) and id(function) in self._functions:
                self._owners.append(vars(hook.__self__))  # also where its class is one of Lightning's callbacks
        if not isinstance(hook, FunctionType | MethodType) and type(hook).__module__.partition(".")[0] != _LIBRARY:
            self._owners.append(hook)

    def _add(self, function: FunctionType) -> None:
        path, module = function.__code__.co_filename, (function.__module__ or "").partition(".")[0]
        if id(function) in self._functions or module == _LIBRARY or any(part in path for part in _OF_LIBRARIES):
            return
        self._functions[id(function)] = function
        for _, value in [*_globals_of(function), *_cells_of(function)]:
            if isinstance(value, FunctionType):
                self._add(value)

    def held(self) -> list[object]:
        """Return the containers, arrays, modules and objects of the user's own classes that they hold."""
        found = list(self._owners)
        for function in self._functions.values():
            for _, value in [*_globals_of(function), *_cells_of(function)]:
                is_own = not isinstance(value, type) and type(value).__module__ == function.__module__
                if type(value) in _CONTAINERS or isinstance(value, nn.Module) or is_own:
                    found.append(value)
        return found

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Give each variable its present value again when the context ends."""
        functions = list(self._functions.values())
        names = [(function.__globals__, name, value) for function in functions for name, value in _globals_of(function)]
        cells = [pair for function in functions for pair in _cells_of(function)]
        try:
            yield
        finally:
            for variables, name, value in names:
                if variables.get(name) is not value:
                    variables[name] = value
            for cell, value in cells:
                if cell.cell_contents is not value:
                    cell.cell_contents = value


def _functions_of(model: nn.Module) -> Iterator[FunctionType]:
    classes = {cls for module in model.modules() for cls in type(module).__mro__}
    for cls in classes:
        for value in vars(cls).values():
            yield from _functions_in(value)
    for module in model.modules():
        for value in vars(module).values():
            yield from _functions_in(value)


def _functions_of_objects(objects: Sequence[object]) -> Iterator[FunctionType]:
    """Yield the functions of their classes, and those that they hold, also in lists, as a scheduler does."""
    waiting, seen = list(objects), set[int]()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, list | tuple):
            waiting.extend(value)
            continue
        yield from _functions_in(value)
        for cls in type(value).__mro__:
            for item in vars(cls).values():
                yield from _functions_in(item)
        if isinstance(value, LRScheduler):
            waiting.extend(vars(value).values())


def _hooks_of(model: nn.Module) -> Iterator[Any]:
    for module in model.modules():
        for name, held in vars(module).items():
            if name.endswith("hooks") and isinstance(held, dict):
                yield from held.values()


def _functions_in(value: Any) -> Iterator[FunctionType]:
    """Yield the function of a method or property, and those that its decorators have wrapped."""
    if isinstance(value, MethodType | classmethod | staticmethod):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    elif isinstance(value, partial):
        value = value.func
    while isinstance(value, FunctionType):
        yield value
        value = getattr(value, "__wrapped__", None)


def _globals_of(function: FunctionType) -> list[tuple[str, Any]]:
    variables = function.__globals__
    return [(name, variables[name]) for name in function.__code__.co_names if name in variables]


def _cells_of(function: FunctionType) -> list[tuple[Any, Any]]:
    found = []
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # it is empty
            found.append((cell, cell.cell_contents))
    return found
