"""The tensors inside whatever a module takes or returns."""

import dataclasses
from collections.abc import Iterator, Mapping

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
