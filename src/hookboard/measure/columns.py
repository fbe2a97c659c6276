"""Numbers that are measured of the whole tensor and stand behind the row's own columns, each kind with its merge."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from hookboard.measure.row import unit_of
from hookboard.measure.values import Values

BLOCK = 1 << 22
"""Values that are worked on at once: bounds the memory of the temporaries."""


class Columns(ABC):
    """Some columns of a row that only a statistic which needs them pays for. They are not the user's.

    Equal ones are measured once. A column is NaN where it cannot be had.
    """

    width: int
    """How many columns."""

    @abstractmethod
    def measure(self, tensor: Tensor, values: Values, row: Tensor, dim: int | None) -> Tensor:
        """The numbers of one tensor that is not empty, shape (width,), float64, without a wait for the device.

        Args:
            tensor: detached.
            values: what is in it.
            row: its moments, shape (WIDTH,), with the columns that the statistic needs.
            dim: the dimension of its channels; None if it has none.
        """

    @abstractmethod
    def merge(self, numbers: Tensor, rows: Tensor, owner: Tensor, merged: Tensor) -> Tensor:
        """Merge the numbers of several tensors, as if they had been measured at once.

        Args:
            numbers: shape (n, width); those of rows without values count for nothing, whatever they are.
            rows: shape (n, WIDTH): the moments of each.
            owner: shape (n,), int64: the index of the result that each belongs to.
            merged: shape (owners, WIDTH): the merged moments.

        Returns:
            Shape (owners, width).
        """


@dataclass(frozen=True)
class Tails(Columns):
    """Third and fourth central moment, as roots, which are no larger than the values. Needs mean and deviation."""

    width = 2

    def measure(self, tensor: Tensor, values: Values, row: Tensor, dim: int | None) -> Tensor:
        """The two roots, in the unit of the values."""
        unit, count, mean = unit_of(row[8], row[9]), row[0].clamp(min=1), row[1]
        sums = values.zeros * torch.stack([(-mean / unit) ** 3, (-mean / unit) ** 4])
        for block in values.numbers.split(BLOCK):
            wide = block.double()
            away = ((wide - mean) / unit).where(wide.isfinite(), 0)
            square = away.square()
            sums = sums + torch.stack([torch.dot(square, away), torch.dot(square, square)])
        return _roots(sums / count) * unit

    def merge(self, numbers: Tensor, rows: Tensor, owner: Tensor, merged: Tensor) -> Tensor:
        """As Chan's formula does it for the variance."""
        # Pebay, "Formulas for robust, one-pass parallel computation of covariances and arbitrary-order statistical
        # moments", 2008, for any number of parts.
        unit = unit_of(merged[:, 8], merged[:, 9])
        parts = torch.cat([rows[:, 1:3], numbers], dim=1).where(rows[:, :1] != 0, 0) / unit[owner, None]
        mean, deviation, third, fourth = parts.unbind(1)
        away, square = mean - (merged[:, 1] / unit)[owner], deviation.square()
        cubes = third**3 + 3 * away * square + away**3
        fourths = fourth**4 + 4 * away * third**3 + 6 * away.square() * square + away**4
        sums = rows[:, :1] * torch.stack([cubes, fourths], dim=1)
        means = sums.new_zeros(len(merged), 2).index_add_(0, owner, sums) / merged[:, :1].clamp(min=1)
        return _roots(means) * unit[:, None]


def _roots(moments: Tensor) -> Tensor:
    """The third root of the first number and the fourth of the second, shape (..., 2)."""
    third, fourth = moments.unbind(-1)
    return torch.stack([third.sign() * third.abs() ** (1 / 3), fourth.clamp(min=0).sqrt().sqrt()], dim=-1)


@dataclass(frozen=True)
class AtEnds(Columns):
    """How many values lie at or beyond one of two ends.

    Args:
        ends: the lower and the upper one; None if the values have no ends, which makes the number NaN.
    """

    ends: tuple[float, float] | None = None

    width = 1

    def measure(self, tensor: Tensor, values: Values, row: Tensor, dim: int | None) -> Tensor:
        """The count of one tensor."""
        if self.ends is None:
            return row.new_full((1,), torch.nan)
        low, high = self.ends
        found = row.new_full((1,), float(values.zeros if low >= 0 or high <= 0 else 0))
        for block in values.numbers.split(BLOCK):
            wide = block.double()  # in half precision the ends would be rounded to other values
            found = found + (((wide <= low) | (wide >= high)) & wide.isfinite()).sum()
        return found

    def merge(self, numbers: Tensor, rows: Tensor, owner: Tensor, merged: Tensor) -> Tensor:
        """The sum."""
        return numbers.new_zeros(len(merged), 1).index_add_(0, owner, numbers.where(rows[:, :1] != 0, 0))
