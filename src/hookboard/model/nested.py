"""Finds and replaces the tensors in nested structures; shapes and stored values of tensors of any layout."""

import copy
import dataclasses
import operator
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from hookboard.base.torch_private import explicit_values


def tensors_in(value: object) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor in tuples, lists, mappings and dataclasses with its path: keys and indices, with slashes.

    >>> x = torch.zeros(1)
    >>> [path for path, _ in tensors_in((x, {"hidden": x, "length": 3}, [x, None]))]
    ['0', '1/hidden', '2/0']
    """
    if isinstance(value, Tensor):
        yield "", value
        return
    for key, item in _items(value):
        if isinstance(item, Tensor):  # without another generator, as this is called in each hook
            yield str(key), item
        else:
            for path, tensor in tensors_in(item):
                yield f"{key}/{path}", tensor


def named_inputs(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the arguments of a call as one structure: a single positional argument itself, otherwise a dict.

    >>> named_inputs((1, 2), {"mask": 3})
    {0: 1, 1: 2, 'mask': 3}
    """
    return args[0] if len(args) == 1 and not kwargs else {**dict(enumerate(args)), **kwargs}


def map_tensors(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Return a copy of `value` with `change(tensor)` in place of every tensor; `value` itself if nothing changed.

    >>> map_tensors(lambda x: x + 1, (torch.zeros(1), {"length": 3}))
    (tensor([1.]), {'length': 3})
    """
    if isinstance(value, Tensor):
        return change(value)
    if not any(True for _ in tensors_in(value)):
        return value
    items = {key: (item, map_tensors(change, item)) for key, item in _items(value)}
    # Identity cannot be traced: then check `can_be_filled` first.
    if not torch.compiler.is_compiling() and all(old is new for old, new in items.values()):
        return value  # the caller may look at this very one
    try:
        return _rebuilt(value, {key: new for key, (_, new) in items.items()})
    except Exception as error:  # the class is the user's, and so is what it raises
        raise TypeError(
            f"an object of type {type(value).__name__} cannot be rebuilt with other tensors in it: {error}"
        ) from error


def can_be_filled(value: object) -> bool:
    """Return True if `map_tensors` can rebuild `value` while torch.compile traces: it is of tuples, lists and dicts.

    >>> can_be_filled(({"a": 1}, [2]))
    True
    """
    if isinstance(value, Tensor) or not any(True for _ in tensors_in(value)):
        return True
    return type(value) in (tuple, list, dict) and all(can_be_filled(item) for _, item in _items(value))


def _rebuilt(value: Any, items: dict[Any, Any]) -> Any:
    kind = type(value)
    if isinstance(value, (tuple, list)):
        return kind(*items.values()) if hasattr(kind, "_fields") else kind(items.values())
    if kind is dict:
        return items
    if isinstance(value, Mapping) and not isinstance(value, (dict, UserDict)):
        return kind(items)  # a copy of it may share what it holds
    # The fields of a dataclass are set past its class, which may be frozen.
    put = operator.setitem if isinstance(value, Mapping) else object.__setattr__
    twin = copy.copy(value)  # no constructor is called, which may change what it is given
    for key, item in items.items():
        put(twin, key, item)
    return twin


def _items(value: Any) -> list[tuple[Any, Any]]:
    """Return the content of a container with keys or indices; [] for anything else."""
    if isinstance(value, (tuple, list)):
        return list(zip(getattr(type(value), "_fields", range(len(value))), value, strict=True))
    if isinstance(value, Mapping):
        return list(value.items())
    # A field that its constructor left out may still come.
    return [(name, getattr(value, name)) for name in _fields_of(type(value)) if hasattr(value, name)]


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # torch has no types for it
def _fields_of(kind: type) -> tuple[str, ...]:
    """Return the field names of a dataclass, () for other classes; older torch cannot trace how a class tells them."""
    return tuple([field.name for field in dataclasses.fields(kind)]) if dataclasses.is_dataclass(kind) else ()


def shape_of(tensor: Tensor) -> tuple[int, ...] | None:
    """Return a tensor's shape; None for a nested tensor.

    >>> shape_of(torch.zeros(2, 3))
    (2, 3)
    """
    return None if tensor.is_nested else tuple(tensor.shape)


def shape_in_words(tensor: Tensor) -> str:
    """Write a tensor's shape; for a nested tensor, the shapes of its parts.

    >>> shape_in_words(torch.zeros(2, 3))
    '(2, 3)'
    """
    shape = shape_of(tensor)
    return f"nested {[tuple(part.shape) for part in tensor.unbind()]}" if shape is None else str(shape)


def stored(gradient: Tensor) -> Tensor:
    """Return the values that a gradient holds in memory: of a sparse one those stored, of a nested one all in a row.

    >>> stored(torch.tensor([[0.0, 2.0], [0.0, 0.0]]).to_sparse())
    tensor([2.])
    """
    if gradient.is_nested:
        return torch.cat([part.flatten() for part in gradient.unbind()])
    # Values for one position are not added up, as the host would wait; if one is not finite, neither is their sum.
    return gradient if gradient.layout is torch.strided else explicit_values(gradient)


def bytes_of(tensor: Tensor) -> int:
    """Return how many bytes the values of a tensor take, of a sparse one those that it stores; 0 for a nested one.

    >>> bytes_of(torch.zeros(4)), bytes_of(torch.eye(4).to_sparse())
    (16, 16)
    """
    return 0 if tensor.is_nested else stored(tensor).nbytes
