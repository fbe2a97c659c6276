"""Further columns of a row, after its moments, each kind with its own way to measure and merge."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor

from hookboard.measure.rounds import Merging
from hookboard.measure.row import EMPTY
from hookboard.measure.values import Values


class Columns(ABC):
    """Base class: measures further columns of a row, which follow the moments, and merges them.

    They are measured only if a statistic needs them. Statistics whose columns are equal (`==`) share them, so
    subclasses are frozen dataclasses. A column that cannot be computed is NaN.
    """

    width: int
    """The number of columns."""

    @abstractmethod
    def measure(self, tensor: Tensor, values: Values, row: Tensor, dim: int | None) -> Tensor:
        """Return the columns of one tensor that is not empty, shape (width,), float64, without waiting for its device.

        Args:
            tensor: the tensor, detached.
            values: the real numbers in the tensor.
            row: its moments, shape (WIDTH,); of `REQUESTABLE`, those that a statistic needs.
            dim: the dimension of its channels; None if it has none.
        """

    @abstractmethod
    def merge(self, numbers: Tensor, rows: Tensor, owner: Tensor | slice, merged: Tensor) -> Merging[Tensor]:
        """Merge the columns of several tensors into those of the tensors concatenated, in one or more rounds.

        Args:
            numbers: shape (n, width): the columns of n tensors. Those of empty tensors are ignored.
            rows: shape (n, WIDTH): the moments of the tensors.
            owner: what picks the result that each tensor is merged into, as `merged[owner]`.
            merged: shape (owners, WIDTH): the moments of the results.

        Returns:
            Shape (owners, width).
        """


def width_of(more: Sequence[Columns]) -> int:
    """Return how many columns follow the moments in a row that has these kinds of columns."""
    return sum(each.width for each in more)


def empty_row(more: Sequence[Columns]) -> list[float]:
    """Return the row of an empty tensor: `EMPTY`, then NaN for each further column."""
    return [*EMPTY, *[math.nan] * width_of(more)]
