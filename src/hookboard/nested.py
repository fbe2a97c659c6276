"""The tensors inside whatever a module takes or returns."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor


def tensors_in(value: object, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor in `value`, with the index or key that leads to it, levels joined by a slash.

    Opens tuples, lists, mappings and dataclasses; fields of named tuples and dataclasses go by their names.
    Anything else holds no tensor.

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
    """What a module is called with, as one structure: a single argument stands for itself, several go by their names.

    >>> named_inputs((1,), {})
    1
    >>> named_inputs((1, 2), {"mask": 3})
    {0: 1, 1: 2, 'mask': 3}
    """
    return args[0] if len(args) == 1 and not kwargs else dict(enumerate(args)) | dict(kwargs)


def map_tensors(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """The same structure with every tensor of `tensors_in` changed, in that order.

    Raises:
        TypeError: a container cannot be made anew from its items.

    >>> import torch
    >>> map_tensors(lambda x: x + 1, (torch.zeros(1), {"length": 3}))
    (tensor([1.]), {'length': 3})
    """
    if isinstance(value, Tensor):
        return change(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(value, **{str(key): map_tensors(change, item) for key, item in _items(value)})
    if isinstance(value, Mapping):
        changed = {key: map_tensors(change, item) for key, item in value.items()}
        if _is_same(changed.values(), value.values()):
            return value  # the caller may look at this very one
        return type(value)(changed)  # type: ignore[call-arg]  # no Mapping promises it, all common ones take it
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[map_tensors(change, item) for item in value])
    if isinstance(value, tuple | list):
        items = [map_tensors(change, item) for item in value]
        return value if _is_same(items, value) else type(value)(items)
    return value


def _is_same(new: Iterable[object], old: Iterable[object]) -> bool:
    # Identity cannot be traced.
    return not torch.compiler.is_compiling() and all(a is b for a, b in zip(new, old, strict=True))


def _items(value: object) -> Iterator[tuple[object, object]]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from zip(value._fields, value, strict=True)
    elif isinstance(value, tuple | list):
        yield from enumerate(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield field.name, getattr(value, field.name)
