"""`Variables`: what the user's code in a model can change besides the model: variables, and objects that they hold."""

import random
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, lru_cache, partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from hookboard.replay.restorable import OF_FILES

_OF_LIBRARIES = ("site-packages", "dist-packages", "/lib/python", "<frozen")
"""What stands in the path of code whose variables do not change from call to call."""

_CONTAINERS = frozenset({list, dict, set, deque, bytearray, np.ndarray})

_OTHERS_THAT_CHANGE = (
    nn.Module,
    torch.Tensor,
    torch.Generator,
    random.Random,
    np.random.Generator,
    np.random.RandomState,
)

_UNSET = object()

_CACHE = type(lru_cache(lambda: None))

_LIBRARY = __name__.partition(".")[0]


class Variables:
    """The variables that the user's code can change when the model is called.

    The code is found by reading it: the methods of the classes of all modules, functions among their attributes and
    hooks, and every function that one of these names or closes over. Its variables are the global ones that it names,
    of its file and of other files of the user, those that it closes over, and the attributes of classes.

    Args:
        model: the model.
        schedulers: their functions run too.
    """

    def __init__(self, model: nn.Module, schedulers: Sequence[LRScheduler] = ()) -> None:
        self._functions: dict[int, FunctionType] = {}
        self._owners: list[object] = []
        self._classes = {cls for module in model.modules() for cls in type(module).__mro__ if _is_own_class(cls)}
        for cls in list(self._classes):
            for value in vars(cls).values():
                self._add_all(value)
        for module in model.modules():
            for value in vars(module).values():
                self._add_all(value)
        for function in _functions_of_objects(schedulers):
            self._add(function)
        for hook in _hooks_of(model):
            self._add_hook(hook)

    def _add_all(self, value: object) -> None:
        for function in _functions_in(value):
            self._add(function)

    def _add_hook(self, hook: Any) -> None:
        for function in _functions_in(hook):
            self._add(function)
            if isinstance(hook, MethodType) and id(function) in self._functions:
                self._owners.append(vars(hook.__self__))  # also where its class is one of Lightning's callbacks
        if not isinstance(hook, FunctionType | MethodType) and type(hook).__module__.partition(".")[0] != _LIBRARY:
            self._owners.append(hook)

    def _add(self, function: FunctionType) -> None:
        module = (function.__module__ or "").partition(".")[0]
        if id(function) in self._functions or module == _LIBRARY or _is_of_library(function.__code__.co_filename):
            return
        self._functions[id(function)] = function
        for _, _, value in _globals_of(function):
            self._add_value(value)
        for _, value in _cells_of(function):
            self._add_value(value)

    def _add_value(self, value: object) -> None:
        if isinstance(value, FunctionType):
            self._add(value)
        elif isinstance(value, type) and _is_own_class(value):
            self._classes.add(value)

    def names(self, *names: str) -> bool:
        """Return whether the user's code names one of these."""
        return any(not {*names}.isdisjoint(_names_in(function.__code__)) for function in self._functions.values())

    def held(self) -> list[object]:
        """Return the containers, arrays, generators, modules and objects of the user's own classes that they hold."""
        found = list(self._owners)
        values = [value for cls in self._classes for value in vars(cls).values()]
        for function in self._functions.values():
            values += [value for _, _, value in _globals_of(function)]
            values += [value for _, value in _cells_of(function)]
            values += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        for value in values:
            kind = type(value)
            is_of_file = kind.__module__.partition(".")[0] in OF_FILES
            if kind in _CONTAINERS or is_of_file or isinstance(value, _OTHERS_THAT_CHANGE) or _is_own_class(kind):
                found.append(value)
        return found

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Give each variable its present value again when the context ends, and empty caches that were empty."""
        functions = list(self._functions.values())
        names = [variable for function in functions for variable in _globals_of(function)]
        cells = [pair for function in functions for pair in _cells_of(function)]
        classes = [(cls, _data_of(cls)) for cls in self._classes]
        values = [value for _, _, value in names] + [value for cls in self._classes for value in vars(cls).values()]
        caches = [value for value in values if isinstance(value, _CACHE) and not value.cache_info().currsize]
        try:
            yield
        finally:
            for variables, name, value in names:
                if value is _UNSET:
                    if not isinstance(variables.get(name), ModuleType):  # what is imported stays
                        variables.pop(name, None)
                elif variables.get(name) is not value:
                    variables[name] = value
            for cell, value in cells:
                if cell.cell_contents is not value:
                    cell.cell_contents = value
            for cls, data in classes:
                _give_back(cls, data)
            for cache in caches:
                cache.cache_clear()


@cache
def _is_of_library(path: str) -> bool:
    return any(part in path for part in _OF_LIBRARIES)


def _is_own_class(cls: type) -> bool:
    """Return whether a class is the user's: of a file outside of libraries."""
    return cls.__module__.partition(".")[0] != _LIBRARY and _is_own_module(sys.modules.get(cls.__module__))


def _is_own_module(module: object) -> bool:
    if getattr(module, "__name__", "") == "__main__":
        return True
    path = getattr(module, "__file__", None)
    return path is not None and not _is_of_library(path)


def _data_of(cls: type) -> dict[str, Any]:
    """Return the attributes of a class that are not its code."""
    code = (FunctionType, classmethod, staticmethod, property, type)
    return {
        name: value
        for name, value in vars(cls).items()
        if not (name.startswith(("__", "_abc_")) or isinstance(value, code) or hasattr(value, "__get__"))
    }


def _give_back(cls: type, data: dict[str, Any]) -> None:
    now = _data_of(cls)
    for name in now.keys() - data.keys():
        delattr(cls, name)
    for name, value in data.items():
        if name not in now or now[name] is not value:
            setattr(cls, name, value)


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


def _globals_of(function: FunctionType) -> list[tuple[dict[str, Any], str, Any]]:
    """Return the variables that a function names: those of its file, and of other files of the user that it imports.

    Returns:
        The variables among which it is, its name and its value, of each; _UNSET where its file has none of that name.
    """
    names, own = set(_names_in(function.__code__)), function.__globals__
    others = [vars(v) for n in names if isinstance(v := own.get(n), ModuleType) and _is_own_module(v)]
    found = [(own, name, own.get(name, _UNSET)) for name in names]
    return found + [(space, name, space[name]) for space in others for name in names if name in space]


def _names_in(code: CodeType) -> Iterator[str]:
    """Yield the names in a function, and in the functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _cells_of(function: FunctionType) -> list[tuple[Any, Any]]:
    found = []
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # it is empty
            found.append((cell, cell.cell_contents))
    return found
