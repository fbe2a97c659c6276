"""The tensors inside the nested structures that modules take and return."""

import copy
import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor

SEQUENCES = (tuple, list)
"""Not written as a union of types: torch 2.6 cannot trace one."""


def tensors_in(value: object, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor in `value`, with the index or key that leads to it, levels joined by a slash.

    It looks inside tuples, lists, mappings and dataclasses; fields of named tuples and dataclasses have their names as
    keys. Other objects are taken to hold no tensor.

    >>> import torch
    >>> x = torch.zeros(1)
    >>> [path for path, _ in tensors_in((x, {"hidden": x, "length": 3}, [x, None]))]
    ['0', '1/hidden', '2/0']
    >>> [path for path, _ in tensors_in(x)]
    ['']
    """
    if isinstance(value, Tensor):
        yield path, value
        return
    for key, item in _items(value):
        yield from tensors_in(item, f"{path}/{key}" if path else str(key))


def named_inputs(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The arguments of a call as one structure: a single positional argument itself, several as a dict.

    >>> named_inputs((1,), {})
    1
    >>> named_inputs((1, 2), {"mask": 3})
    {0: 1, 1: 2, 'mask': 3}
    """
    return args[0] if len(args) == 1 and not kwargs else {**dict(enumerate(args)), **kwargs}


def map_tensors(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """The same structure with every tensor replaced by `change(tensor)`, in the order of `tensors_in`.

    Containers keep their class and their other content. A container in which nothing changed is returned itself, not a
    copy. Where possible a container is copied and filled, so that no constructor runs.

    Raises:
        TypeError: a container can neither be copied nor be built from its items.

    >>> import torch
    >>> map_tensors(lambda x: x + 1, (torch.zeros(1), {"length": 3}))
    (tensor([1.]), {'length': 3})
    """
    if isinstance(value, Tensor):
        return change(value)
    keys = [key for key, _ in _items(value)]
    old = [item for _, item in _items(value)]
    if not old:
        return value
    new = [map_tensors(change, item) for item in old]
    if _is_same(new, old):
        return value  # the caller may look at this very one
    return _rebuilt(value, keys, new)


def _is_same(new: Iterable[object], old: Iterable[object]) -> bool:
    # Identity cannot be traced.
    return not torch.compiler.is_compiling() and all(a is b for a, b in zip(new, old, strict=True))


def _rebuilt(value: Any, keys: Sequence[Any], items: Sequence[Any]) -> Any:
    """A container like `value` with other items."""
    kind = type(value)
    # These are all that torch.compile has to trace.
    if kind in (tuple, list):
        return kind(items)
    if kind in (dict, OrderedDict):
        return kind(zip(keys, items, strict=True))
    if torch.compiler.is_compiling() and not isinstance(value, (Mapping, list)):
        if dataclasses.is_dataclass(value):
            return dataclasses.replace(value, **dict(zip(keys, items, strict=True)))  # type: ignore[type-var]  # mypy takes it for a class
        return kind(*items) if hasattr(value, "_fields") else kind(items)
    try:
        if isinstance(value, Mapping):
            return _rebuilt_mapping(value, keys, items)
        if isinstance(value, tuple):
            return _rebuilt_tuple(value, items)
        twin = copy.copy(value)
        if isinstance(value, list):
            twin[:] = items
        else:
            _set_fields(twin, keys, items)
        return twin
    except Exception as error:
        raise TypeError(f"a {kind.__name__} cannot be rebuilt with other tensors in it: {error}") from error


def _rebuilt_tuple(value: tuple[Any, ...], items: Sequence[Any]) -> Any:
    kind = type(value)
    if hasattr(kind, "n_sequence_fields"):  # what torch.max and others return
        return kind(items)
    twin = tuple.__new__(kind, items)
    twin.__dict__.update(value.__dict__) if hasattr(value, "__dict__") else None
    return twin


def _rebuilt_mapping(value: Mapping[Any, Any], keys: Sequence[Any], items: Sequence[Any]) -> Any:
    old = [value[key] for key in keys]
    if not isinstance(value, MutableMapping):
        return type(value)(dict(zip(keys, items, strict=True)))  # type: ignore[call-arg]  # no Mapping promises it, most take it
    twin = copy.copy(value)
    for key, item in zip(keys, items, strict=True):
        twin[key] = item
    if any(value[key] is not item for key, item in zip(keys, old, strict=True)):
        # The copy shares what it holds with the caller's own.
        for key, item in zip(keys, old, strict=True):
            value[key] = item
        return type(value)(dict(zip(keys, items, strict=True)))  # type: ignore[call-arg]
    if dataclasses.is_dataclass(value):  # such as the outputs of Hugging Face's models: items are attributes too
        names = {field.name for field in dataclasses.fields(value)}
        both = [
            (k, new) for k, new, was in zip(keys, items, old, strict=True) if k in names and getattr(value, k) is was
        ]
        _set_fields(twin, [key for key, _ in both], [item for _, item in both])
    return twin


def _set_fields(twin: object, keys: Sequence[str], items: Sequence[Any]) -> None:
    for key, item in zip(keys, items, strict=True):
        object.__setattr__(twin, key, item)  # frozen classes refuse any other way


def _items(value: object) -> Iterator[tuple[object, object]]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, tuple) and hasattr(type(value), "_fields"):
        for k, item in enumerate(value):  # not zip: with it torch.compile fails
            yield type(value)._fields[k], item  # type: ignore[attr-defined]
    elif isinstance(value, SEQUENCES):
        yield from enumerate(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield field.name, getattr(value, field.name)
