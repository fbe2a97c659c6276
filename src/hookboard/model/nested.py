"""Finds and replaces the tensors inside the nested structures that modules take and return."""

import copy
import dataclasses
from collections import OrderedDict, UserDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_TRACES_ATTRIBUTES = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 9)
"""Older torch cannot trace `__dict__`: inside a graph a rebuilt dataclass then keeps its fields and nothing else."""

MAX_DEPTH = 64
"""What lies deeper in a structure is taken to hold no tensor (a choice)."""


def tensors_in(value: object) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor in `value` with its path: the indices or keys that lead to it, joined by slashes.

    It looks inside tuples, lists, mappings and dataclasses; fields of named tuples and dataclasses count as keys. Other
    objects are taken to hold no tensor. If two paths read the same, as for the keys 1 and "1", the second ends in "~".

    >>> import torch
    >>> x = torch.zeros(1)
    >>> [path for path, _ in tensors_in((x, {"hidden": x, "length": 3}, [x, None]))]
    ['0', '1/hidden', '2/0']
    >>> [path for path, _ in tensors_in(x)]
    ['']
    >>> [path for path, _ in tensors_in({1: x, "1": x})]
    ['1', '1~']
    """
    taken: set[str] = set()
    for path, tensor in _tensors(value, "", ()):
        while path in taken:
            path += "~"
        taken.add(path)
        yield path, tensor


def _tensors(value: object, path: str, above: tuple[object, ...]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in a value that stands at `path`; `above` are the containers that hold it."""
    if isinstance(value, Tensor):
        yield path, value
    elif not _is_too_deep(value, above):
        for key, item in _items(value):
            yield from _tensors(item, f"{path}/{key}" if path else str(key), (*above, value))


def _is_too_deep(value: object, above: tuple[object, ...]) -> bool:
    """Return True for a container below MAX_DEPTH others, and for one that holds itself."""
    # Identity cannot be traced.
    holds_itself = not torch.compiler.is_compiling() and any(value is one for one in above)
    return holds_itself or len(above) >= MAX_DEPTH


def named_inputs(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the arguments of a call as one structure: a single positional argument itself, otherwise a dict.

    >>> named_inputs((1,), {})
    1
    >>> named_inputs((1, 2), {"mask": 3})
    {0: 1, 1: 2, 'mask': 3}
    """
    return args[0] if len(args) == 1 and not kwargs else {**dict(enumerate(args)), **kwargs}


def map_tensors(change: Callable[[Tensor], Tensor], value: Any, _above: tuple[object, ...] = ()) -> Any:
    """Return `value` with `change(tensor)` in place of every tensor, called in the order of `tensors_in`.

    `value` itself stays as it is. Containers keep their class and their other content. A container in which nothing
    changed is returned itself, not a copy, except while torch.compile traces: then check `can_be_filled` first.

    Raises:
        TypeError: a container can neither be copied and filled nor built from its items.

    >>> import torch
    >>> map_tensors(lambda x: x + 1, (torch.zeros(1), {"length": 3}))
    (tensor([1.]), {'length': 3})
    """
    if isinstance(value, Tensor):
        return change(value)
    if _is_too_deep(value, _above) or (torch.compiler.is_compiling() and not list(tensors_in(value))):
        return value
    keys, old = [key for key, _ in _items(value)], [item for _, item in _items(value)]
    new = [map_tensors(change, item, (*_above, value)) for item in old]
    # Identity cannot be traced.
    if not old or (not torch.compiler.is_compiling() and all(a is b for a, b in zip(new, old, strict=True))):
        return value  # the caller may look at this very one
    try:
        return _rebuilt(value, keys, new)
    except Exception as error:  # the class is the user's, and so is what it raises
        raise TypeError(
            f"an object of type {type(value).__name__} cannot be rebuilt with other tensors in it: {error}"
        ) from error


def can_be_filled(value: object) -> bool:
    """Return True if `map_tensors` can rebuild `value` while torch.compile traces, without running its classes' code.

    A structure without tensors is not rebuilt: for it the answer is True.

    >>> can_be_filled(({"a": 1}, [2]))
    True
    """
    if isinstance(value, Tensor) or not list(tensors_in(value)):
        return True
    kind = type(value)
    is_tuple = isinstance(value, tuple) and (kind.__bases__ == (tuple,) or _is_struct(kind))
    is_plain = kind in (tuple, list, dict, OrderedDict) or is_tuple or not isinstance(value, (tuple, list, Mapping))
    return is_plain and all(can_be_filled(item) for _, item in _items(value))


def _rebuilt(value: Any, keys: Sequence[Any], items: Sequence[Any]) -> Any:
    """Return a container like `value` with other items, without calling its constructor where that can be."""
    kind = type(value)
    if kind in (tuple, list) or _is_struct(kind):
        return kind(items)
    if isinstance(value, tuple):
        return kind(*items) if torch.compiler.is_compiling() else _with_attributes(tuple.__new__(kind, items), value)
    if kind in (dict, OrderedDict):
        twin: Any = {} if kind is dict else OrderedDict()  # `kind()` cannot be traced
    elif isinstance(value, Mapping):
        if not isinstance(value, (dict, UserDict)):  # a copy of another may share what it holds
            return kind(dict(zip(keys, items, strict=True)))  # most take it
        twin = copy.copy(value)
    elif isinstance(value, list):
        twin = copy.copy(value)
        twin[:] = items
        return twin
    else:
        twin = _with_attributes(object.__new__(kind), value)
        for key, item in zip(keys, items, strict=True):
            object.__setattr__(twin, key, item)  # frozen classes refuse any other way
        return twin
    for key, item in zip(keys, items, strict=True):
        twin[key] = item
    return twin


def _with_attributes(twin: Any, value: Any) -> Any:
    """Copy the attributes of `value` to `twin`, bypassing any `__setattr__` of its class."""
    if hasattr(value, "__dict__") and (_TRACES_ATTRIBUTES or not torch.compiler.is_compiling()):
        for name, item in value.__dict__.items():
            twin.__dict__[name] = item
    return twin


def _is_struct(kind: type) -> bool:
    """Return True for classes such as that of `torch.max`'s result: tuples with names that C code defines."""
    return hasattr(kind, "n_sequence_fields")


def _items(value: object) -> list[tuple[Any, Any]]:
    """Return the content of a container with keys or indices; [] for anything else.

    Subclasses of `dict`, `UserDict`, `tuple` and `list` are read without their own code: it may count what is read.
    """
    is_traced = torch.compiler.is_compiling()  # what torch.compile traces has to be plain
    if isinstance(value, UserDict) and not is_traced:
        value = vars(value).get("data", value)
    if isinstance(value, dict) and not is_traced:
        return list((OrderedDict if isinstance(value, OrderedDict) else dict).items(value))
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, (tuple, list)):
        names = getattr(type(value), "_fields", None)
        plain: Any = value if is_traced else (tuple if isinstance(value, tuple) else list).__iter__(value)  # type: ignore[arg-type]
        return [(k if names is None else names[k], item) for k, item in enumerate(plain)]
    # A field that its constructor left out may still come.
    return [(name, getattr(value, name)) for name in _fields_of(type(value)) if hasattr(value, name)]


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # torch has no types for it
def _fields_of(kind: type) -> tuple[str, ...]:
    """Return the field names of a dataclass, () for other classes.

    A constant for torch.compile: older torch cannot trace how a class tells its fields.
    """
    return tuple([field.name for field in dataclasses.fields(kind)]) if dataclasses.is_dataclass(kind) else ()
