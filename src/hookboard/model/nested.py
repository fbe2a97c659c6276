"""Finds and replaces the tensors inside the nested structures that modules take and return."""

import copy
import dataclasses
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hookboard.model.state import content_of

_TRACES_ATTRIBUTES = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 9)
"""Older torch cannot trace `__dict__`: inside a graph a rebuilt dataclass then keeps its fields and nothing else."""

MAX_DEPTH = 64
"""What lies deeper in a structure is taken to hold no tensor (a choice)."""


def tensors_in(value: object) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor in `value` with its path: the indices or keys that lead to it, joined by slashes.

    It looks inside tuples, lists, mappings and dataclasses; fields of named tuples and dataclasses count as keys. Other
    objects are taken to hold no tensor. If two keys read the same, such as 1 and "1", the second path ends in "~2".
    Subclasses of `dict` and `UserDict` are read without their own code; to read another mapping, its code must run.

    >>> import torch
    >>> x = torch.zeros(1)
    >>> [path for path, _ in tensors_in((x, {"hidden": x, "length": 3}, [x, None]))]
    ['0', '1/hidden', '2/0']
    >>> [path for path, _ in tensors_in(x)]
    ['']
    >>> [path for path, _ in tensors_in({1: x, "1": x})]
    ['1', '1~2']
    """
    if isinstance(value, Tensor):
        yield "", value
        return
    taken: dict[str, int] = {}  # also by None: where one call has None and the next a tensor, paths stay as they are
    for wanted, item in _leaves(value, "", ()):
        unique, number = wanted, 1
        if wanted in taken:
            number = taken[wanted] + 1
            while f"{wanted}~{number}" in taken:
                number += 1
            unique = f"{wanted}~{number}"
            taken[unique] = 1
        taken[wanted] = number
        if isinstance(item, Tensor):
            yield unique, item


def _leaves(value: object, path: str, above: tuple[object, ...]) -> Iterator[tuple[str, object]]:
    """Yield all inside `value` that is no container, with its path; `above` are the containers that hold `value`."""
    above = (*above, value)
    for key, item in _items(value):
        where = f"{path}/{key}" if path else str(key)
        if isinstance(item, (str, int, float, Tensor)) or not _is_container(item):
            yield where, item
        elif not _is_too_deep(item, above):
            yield from _leaves(item, where, above)


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
    changed is returned itself, not a copy, except while torch.compile traces. New containers are made without calling
    their constructor, which may change what it is given; only mappings that cannot be filled, and results of torch such
    as that of `torch.max`, are built from their items.

    While torch.compile traces, check `can_be_filled` first.

    Raises:
        TypeError: a container can neither be filled nor built from its items.

    >>> import torch
    >>> map_tensors(lambda x: x + 1, (torch.zeros(1), {"length": 3}))
    (tensor([1.]), {'length': 3})
    """
    if isinstance(value, Tensor):
        return change(value)
    if _is_too_deep(value, _above):
        return value
    if torch.compiler.is_compiling() and not list(tensors_in(value)):
        return value
    items = list(_items(value))
    if not items:
        return value
    keys, old = [key for key, _ in items], [item for _, item in items]
    new = [map_tensors(change, item, (*_above, value)) for item in old]
    if _is_same(new, old):
        return value  # the caller may look at this very one
    return _rebuilt(value, keys, new)


def can_be_filled(value: object) -> bool:
    """Return True if `map_tensors` can rebuild `value` while torch.compile traces, without running its classes' code.

    A structure without tensors is not rebuilt: for it the answer is True.

    >>> can_be_filled(({"a": 1}, [2]))
    True
    """
    if isinstance(value, Tensor) or not list(tensors_in(value)):
        return True
    kind = type(value)
    if isinstance(value, Mapping):
        # Nothing that can be traced sets the attributes of a subclass of OrderedDict.
        is_known = kind is OrderedDict or (isinstance(value, dict) and not isinstance(value, OrderedDict))
    elif isinstance(value, tuple):
        # A subclass of a named tuple may have a `__new__` of its own.
        is_known = kind is tuple or (kind.__bases__ == (tuple,) and (hasattr(kind, "_fields") or _is_struct(kind)))
    else:
        is_known = not isinstance(value, list) or kind is list
    return is_known and all(can_be_filled(item) for _, item in _items(value))


def _is_same(new: Iterable[object], old: Iterable[object]) -> bool:
    # Identity cannot be traced.
    return not torch.compiler.is_compiling() and all(a is b for a, b in zip(new, old, strict=True))


def _rebuilt(value: Any, keys: Sequence[Any], items: Sequence[Any]) -> Any:
    """Return a container like `value` with other items."""
    kind = type(value)
    if kind in (tuple, list):
        return kind(items)
    if kind in (dict, OrderedDict):
        twin: Any = {} if kind is dict else OrderedDict()  # `kind()` cannot be traced
        for key, item in zip(keys, items, strict=True):
            twin[key] = item
        return twin
    if torch.compiler.is_compiling() and isinstance(value, tuple):
        return kind(*items) if hasattr(value, "_fields") else kind(items)
    try:
        if isinstance(value, dict):
            return _rebuilt_dict(value, keys, items)
        if isinstance(value, Mapping):
            return _rebuilt_mapping(value, keys, items)
        if isinstance(value, tuple):
            return _rebuilt_tuple(value, items)
        if isinstance(value, list):
            twin = list.__new__(kind)
            list.extend(twin, items)
            return _with_attributes(twin, value)
        twin = _with_attributes(object.__new__(kind), value)
        _set_fields(twin, keys, items)
        return twin
    except Exception as error:  # the class is the user's, and so is what it raises
        raise TypeError(
            f"an object of type {kind.__name__} cannot be rebuilt with other tensors in it: {error}"
        ) from error


def _with_attributes(twin: Any, value: Any) -> Any:
    """Copy the attributes of `value` to `twin`, bypassing any `__setattr__` of its class."""
    if hasattr(value, "__dict__") and (_TRACES_ATTRIBUTES or not torch.compiler.is_compiling()):
        for name, item in value.__dict__.items():
            twin.__dict__[name] = item
    return twin


def _rebuilt_tuple(value: tuple[Any, ...], items: Sequence[Any]) -> Any:
    kind = type(value)
    return kind(items) if _is_struct(kind) else _with_attributes(tuple.__new__(kind, items), value)


def _is_struct(kind: type) -> bool:
    """Return True for classes such as that of `torch.max`'s result: tuples with names that C code defines."""
    return hasattr(kind, "n_sequence_fields")


def _rebuilt_dict(value: dict[Any, Any], keys: Sequence[Any], items: Sequence[Any]) -> Any:
    kind = type(value)
    if isinstance(value, OrderedDict):
        twin: Any = OrderedDict.__new__(kind)
        for key, item in zip(keys, items, strict=True):
            OrderedDict.__setitem__(twin, key, item)
    else:
        twin = dict.__new__(kind)
        for key, item in zip(keys, items, strict=True):
            dict.__setitem__(twin, key, item)
    if isinstance(value, defaultdict):
        twin.default_factory = value.default_factory
    _with_attributes(twin, value)
    _set_item_attributes(twin, value, keys, items)
    return twin


def _set_item_attributes(twin: Any, value: Any, keys: Sequence[Any], items: Sequence[Any]) -> None:
    """Set the new items as attributes of `twin` too, where the old ones were: Hugging Face's outputs have both.

    Args:
        twin: the copy, changed in place.
        value: the original mapping.
        keys: the keys of the items.
        items: the new item of each key.
    """
    names = _fields_of(type(value))
    held: Any = value
    for key, item in zip(keys, items, strict=True):
        if key in names and getattr(held, key, None) is held[key]:
            twin.__dict__[key] = item


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
        return type(value)(dict(zip(keys, items, strict=True)))  # type: ignore[call-arg]  # as above
    _set_item_attributes(twin, value, keys, items)
    return twin


def _set_fields(twin: object, keys: Sequence[str], items: Sequence[Any]) -> None:
    for key, item in zip(keys, items, strict=True):
        object.__setattr__(twin, key, item)  # frozen classes refuse any other way


def _items(value: object) -> Iterator[tuple[object, object]]:
    """Yield the content with keys or indices, without code of the container's class where that can be."""
    is_traced = torch.compiler.is_compiling()  # what torch.compile traces has to be plain
    if isinstance(value, UserDict) and not is_traced:
        value = vars(value).get("data", value)
    if isinstance(value, dict) and type(value) is not dict and not is_traced:
        yield from content_of(value).items()
    elif isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, (tuple, list)):
        names = getattr(type(value), "_fields", None)
        plain = value if is_traced else (tuple if isinstance(value, tuple) else list).__iter__(value)  # type: ignore[arg-type]
        for k, item in enumerate(plain):  # not zip: with it torch.compile fails
            yield k if names is None else names[k], item
    else:
        for name in _fields_of(type(value)):
            if hasattr(value, name):  # one that its constructor left out may still come
                yield name, getattr(value, name)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # torch has no types for it
def _fields_of(kind: type) -> tuple[str, ...]:
    """Return the field names of a dataclass, () for other classes.

    A constant for torch.compile: older torch cannot trace how a class tells its fields.
    """
    return tuple([field.name for field in dataclasses.fields(kind)]) if dataclasses.is_dataclass(kind) else ()


def _is_container(value: object) -> bool:
    if isinstance(value, (Mapping, tuple, list)):
        return True
    return dataclasses.is_dataclass(value) and not isinstance(value, type)
