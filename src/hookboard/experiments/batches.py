"""Reads batches of a DataLoader without a trace: whoever iterates over it gets the same batches as before."""

import itertools
import math
from collections.abc import Iterable, Iterator
from time import perf_counter
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, IterableDataset

from hookboard.model.layouts import bytes_of
from hookboard.model.nested import tensors_in
from hookboard.model.state import same_random_state, same_state
from hookboard.tracing.step import CannotRunAgainError

MAX_BYTES = 1 << 28
"""A data set whose attributes hold more bytes in tensors and arrays is not read, as they would be copied (a choice)."""


def read_apart(loader: Any, count: int, until: float = math.inf) -> list[Any]:
    """Return the first batches of a pass over a DataLoader, loaded in this process without its workers.

    If the loader shuffles, the next pass over it has another order. Afterwards the random state, the generators of the
    loader and its samplers, and the attributes of the data set are restored. After `until`, a value of
    `perf_counter()`, no further batch is loaded.

    Raises:
        CannotRunAgainError: `loader` is anything else, also of a subclass of DataLoader, or its data set is too large
            to be restored.
    """
    is_map_style = type(loader) is DataLoader and not isinstance(loader.dataset, IterableDataset)
    if not is_map_style or loader.batch_sampler is None:
        raise CannotRunAgainError("only a DataLoader over a map-style data set, with a batch size, can be read twice")
    sets = [one for one in _within(loader.dataset) if type(one).__module__.partition(".")[0] != "torch"]
    size = sum(_bytes_in(vars(one).values()) for one in sets)
    if size > MAX_BYTES:
        raise CannotRunAgainError(f"the data set holds {size:,} bytes, which would have to be copied to restore it")
    held = [vars(one) for one in (loader, loader.sampler, loader.batch_sampler, *sets) if hasattr(one, "__dict__")]
    found: list[Any] = []
    with same_random_state(), same_state(*held):
        data: Any = loader.dataset
        several = getattr(data, "__getitems__", None)
        for indices in itertools.islice(loader.batch_sampler, count):
            if perf_counter() > until:
                break
            found.append(loader.collate_fn(several(indices) if several else [data[index] for index in indices]))
    return found


def _within(data: Any) -> Iterator[Any]:
    """Yield a data set and those that it wraps as `dataset` or `datasets`, such as a Subset's, at any depth.

    Objects without a `__dict__` are left out.
    """
    if hasattr(data, "__dict__"):
        yield data
    inner = getattr(data, "datasets", None) or [getattr(data, "dataset", None)]
    for one in inner if isinstance(inner, list | tuple) else []:
        if one is not None:
            yield from _within(one)


def _bytes_in(values: Iterable[Any]) -> int:
    """Return the bytes of the NumPy arrays among the values, and of all tensors in the values at any depth."""
    values = list(values)
    arrays = sum(value.nbytes for value in values if isinstance(value, np.ndarray))
    return arrays + sum(bytes_of(tensor) for _, tensor in tensors_in(values))
