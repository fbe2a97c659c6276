"""Numbers that are measured of the whole tensor and follow the row's own columns, each kind with its merge."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hookboard.measure.row import unit_of
from hookboard.measure.values import Values

BLOCK_ON_CPU, BLOCK_ELSEWHERE = 1 << 16, 1 << 24
"""Values that are worked on at once: they stay in the cache; they bound the memory of the temporaries."""


class Columns(ABC):
    """Measures and merges further columns of a row, after the moments, for built-in statistics that need them.

    They are measured only if such a statistic is wanted; statistics whose columns are equal (`==`) share them, so
    subclasses are frozen dataclasses. The columns of a user's statistics come after these. A column that cannot be
    computed is NaN.
    """

    width: int
    """How many columns."""

    @abstractmethod
    def measure(self, tensor: Tensor, values: Values, row: Tensor, dim: int | None) -> Tensor:
        """Return the numbers of one tensor that is not empty, shape (width,), float64, without a wait for the device.

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
        """Return the two roots, in the unit of the values."""
        unit = unit_of(row[8], row[9])
        mean = row[1] / unit
        may_have_others = not row.is_cpu or row[5:8].any().item()  # of a device the host would have to wait
        cubes, fourths = values.zeros * -(mean**3), values.zeros * mean**4
        for block in _blocks(values):
            away = block.to(torch.float64, copy=True).div_(unit).sub_(mean)
            if may_have_others:
                away = away.where(away.isfinite(), 0)
            square = away.square()
            cubes, fourths = cubes + torch.dot(square, away), fourths + torch.dot(square, square)
        return _roots(torch.stack([cubes, fourths]) / row[0].clamp(min=1)) * unit

    def merge(self, numbers: Tensor, rows: Tensor, owner: Tensor, merged: Tensor) -> Tensor:
        """Merge as Chan's formula does for the variance."""
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


def _blocks(values: Values) -> Sequence[Tensor]:
    blocks: Sequence[Tensor] = values.numbers.split(BLOCK_ON_CPU if values.numbers.is_cpu else BLOCK_ELSEWHERE)
    return blocks


def _roots(moments: Tensor) -> Tensor:
    """Return the third root of the first number and the fourth of the second, shape (..., 2)."""
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
        """Return the count of one tensor."""
        if self.ends is None:
            return row.new_full((1,), torch.nan)
        low, high = self.ends
        found = -row[6:8].sum(0, keepdim=True)  # infinities lie beyond the ends
        if low >= 0 or high <= 0:
            found += values.zeros
        for block in _blocks(values):
            wide = block.double()  # in half precision the ends would be rounded to other values
            found += torch.count_nonzero(wide <= low) + torch.count_nonzero(wide >= high)
        return found

    def merge(self, numbers: Tensor, rows: Tensor, owner: Tensor, merged: Tensor) -> Tensor:
        """Return the sum."""
        return numbers.new_zeros(len(merged), 1).index_add_(0, owner, numbers.where(rows[:, :1] != 0, 0))
