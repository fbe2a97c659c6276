"""`Variables`: saves the global, class and closure variables that the user's code in a model can change."""

import random
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, lru_cache, partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from hookboard.replay.restorable import FILE_LIBRARIES

_LIBRARY_PATHS = ("site-packages", "dist-packages", "/lib/python", "<frozen")
"""Parts of the paths of library code. Variables of libraries are not saved: they do not change from call to call."""

_CONTAINERS = frozenset({list, dict, set, deque, bytearray, np.ndarray})

_MUTABLE = (
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
    """The variables that the user's code can change when a training step runs.

    The functions are collected from the classes, attributes and hooks of all modules and from the schedulers; then
    every function that one of these names or closes over, and so on. Their variables are the globals that they name, in
    their own file and in imported files of the user, the variables that they close over, and the attributes of the
    user's classes.

    Args:
        model: the model.
        schedulers: the learning rate schedulers, including those that another one wraps.
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
        for scheduler in schedulers:
            for value in [scheduler, *(part for held in vars(scheduler).values() for part in nested_parts(held))]:
                for item in [value, *(item for cls in type(value).__mro__ for item in vars(cls).values())]:
                    self._add_all(item)
        for hook in _hooks_of(model):
            self._add_hook(hook)

    def _add_all(self, value: object) -> None:
        for function in _functions_in(value):
            self._add(function)

    def _add_hook(self, hook: Any) -> None:
        for function in _functions_in(hook):
            self._add(function)
            if isinstance(hook, MethodType) and id(function) in self._functions:
                self._owners.append(vars(hook.__self__))  # `held` leaves out a callback of Lightning itself
        if not isinstance(hook, FunctionType | MethodType) and type(hook).__module__.partition(".")[0] != _LIBRARY:
            self._owners.append(hook)

    def _add(self, function: FunctionType) -> None:
        module = (function.__module__ or "").partition(".")[0]
        if id(function) in self._functions or module == _LIBRARY or _is_library_file(function.__code__.co_filename):
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
        """Return True if one of these identifiers occurs in the user's code, as a variable or an attribute."""
        return any(not {*names}.isdisjoint(_names_in(function.__code__)) for function in self._functions.values())

    def held(self) -> list[object]:
        """Return the objects that code may change in place: those in its variables, and those that hooks belong to.

        Of variables and default arguments, these are containers, arrays, tensors, random generators, modules, files,
        iterators, and objects of the user's classes.
        """
        found = list(self._owners)
        values = [value for cls in self._classes for value in vars(cls).values()]
        for function in self._functions.values():
            values += [value for _, _, value in _globals_of(function)]
            values += [value for _, value in _cells_of(function)]
            values += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        for value in values:
            kind = type(value)
            is_file = kind.__module__.partition(".")[0] in FILE_LIBRARIES
            if kind in _CONTAINERS or is_file or isinstance(value, (*_MUTABLE, Iterator)) or _is_own_class(kind):
                found.append(value)
        return found

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Assign each variable its present value again when the context ends.

        New variables are deleted, except for imported modules. Caches of `functools` that were empty are cleared.
        """
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
                _restore_class(cls, data)
            for cache in caches:
                cache.cache_clear()


@cache
def _is_library_file(path: str) -> bool:
    return any(part in path for part in _LIBRARY_PATHS)


def _is_own_class(cls: type) -> bool:
    """Return True if a class is defined in a file of the user, not in a library."""
    return cls.__module__.partition(".")[0] != _LIBRARY and _is_own_module(sys.modules.get(cls.__module__))


def _is_own_module(module: object) -> bool:
    if getattr(module, "__name__", "") == "__main__":
        return True
    path = getattr(module, "__file__", None)
    return path is not None and not _is_library_file(path)


def _data_of(cls: type) -> dict[str, Any]:
    """Return the attributes of a class that hold data: no methods, descriptors or nested classes."""
    code = (FunctionType, classmethod, staticmethod, property, type)
    return {
        name: value
        for name, value in vars(cls).items()
        if not (name.startswith(("__", "_abc_")) or isinstance(value, code) or hasattr(value, "__get__"))
    }


def _restore_class(cls: type, data: dict[str, Any]) -> None:
    now = _data_of(cls)
    for name in now.keys() - data.keys():
        delattr(cls, name)
    for name, value in data.items():
        if name not in now or now[name] is not value:
            setattr(cls, name, value)


def nested_parts(value: Any) -> Iterator[Any]:
    """Yield the value itself, and every item of the mappings, tuples and lists inside it.

    >>> list(nested_parts({"x": [1, 2]}))
    [{'x': [1, 2]}, [1, 2], 1, 2]
    """
    yield value
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else ()
    for item in items:
        yield from nested_parts(item)


def _hooks_of(model: nn.Module) -> Iterator[Any]:
    for module in model.modules():
        for name, held in vars(module).items():
            if name.endswith("hooks") and isinstance(held, dict):
                yield from held.values()


def _functions_in(value: Any) -> Iterator[FunctionType]:
    """Yield the function that a value is or holds (a method, property or `partial`), and those that decorators wrap."""
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
    """Return the global variables that a function names, in its own file and in files of the user that it imports.

    Returns:
        For each variable: the namespace that holds it, its name, and its value; _UNSET if its own file has none.
    """
    names, own = set(_names_in(function.__code__)), function.__globals__
    others = [vars(v) for n in names if isinstance(v := own.get(n), ModuleType) and _is_own_module(v)]
    found = [(own, name, own.get(name, _UNSET)) for name in names]
    return found + [(space, name, space[name]) for space in others for name in names if name in space]


def _names_in(code: CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes in a function's code, and in the functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _cells_of(function: FunctionType) -> list[tuple[Any, Any]]:
    """Return the cells of the variables that a function closes over, with their values; empty cells are left out."""
    found = []
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # it is empty
            found.append((cell, cell.cell_contents))
    return found
