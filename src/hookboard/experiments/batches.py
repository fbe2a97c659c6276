"""Reads batches of a data loader apart from those that iterate over it, and leaves it as it was."""

import itertools
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, IterableDataset

from hookboard.nested import tensors_in
from hookboard.replay import CannotRunAgainError
from hookboard.state import State, same_random_state

MAX_BYTES = 1 << 28
"""A data set with more tensors and arrays in its attributes is not read: they would be copied (a choice)."""


def read_apart(loader: Any, count: int, until: float = math.inf) -> list[Any]:
    """Return the next batches of a loader, read in this process, without its workers.

    The random state, the loader's and its samplers' generators, and the attributes of the data set are put back.

    Args:
        loader: a DataLoader over a data set with indices.
        count: so many at most.
        until: after this time, on the clock of `perf_counter`, no further batch is read.

    Raises:
        CannotRunAgainError: the loader can be read only once, or not without a trace.
    """
    if type(loader) is not DataLoader or isinstance(loader.dataset, IterableDataset):
        raise CannotRunAgainError("only a DataLoader over a data set with indices can be read twice")
    found: list[Any] = []
    with _as_it_was(loader):
        sampler = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        for indices in itertools.islice(sampler, count):
            if perf_counter() > until:
                break
            found.append(_fetched(loader, indices))
    return found


def _fetched(loader: DataLoader[Any], indices: Any) -> Any:
    data: Any = loader.dataset
    if loader.batch_sampler is None:
        return loader.collate_fn(data[indices])
    several = getattr(data, "__getitems__", None)
    return loader.collate_fn(several(indices) if several else [data[index] for index in indices])


@contextmanager
def _as_it_was(loader: DataLoader[Any]) -> Iterator[None]:
    sets = list(_within(loader.dataset))
    size = sum(_bytes_in(vars(one).values()) for one in sets if not _is_of_torch(one))
    if size > MAX_BYTES:
        raise CannotRunAgainError(f"the data set holds {size:,} bytes, which would be copied to put them back")
    # `State` does not look into objects of torch, which samplers and data sets mostly are.
    held = [vars(one) for one in (loader.sampler, loader.batch_sampler) if hasattr(one, "__dict__")]
    held += [vars(one) for one in sets if not _is_of_torch(one)]
    with same_random_state():
        state = State(loader.generator, *held)
        try:
            yield
        finally:
            state.restore()


def _within(data: Any) -> Iterator[Any]:
    """Yield a data set and those that it draws from, as far as they have attributes."""
    if hasattr(data, "__dict__"):
        yield data
    inner = getattr(data, "datasets", None) or [getattr(data, "dataset", None)]
    for one in inner if isinstance(inner, list | tuple) else []:
        if one is not None:
            yield from _within(one)


def _is_of_torch(data: object) -> bool:
    return type(data).__module__.partition(".")[0] == "torch"


def _bytes_in(values: Iterable[Any]) -> int:
    """Return the size of the tensors and arrays."""
    values = list(values)
    arrays = sum(value.nbytes for value in values if isinstance(value, np.ndarray))
    return arrays + sum(tensor.nbytes for _, tensor in tensors_in(values))
