"""Further columns of a row, after its moments, each kind with its own way to measure and merge."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hookboard.base.rounds import Merging, once
from hookboard.measure.row import EMPTY, unit_of
from hookboard.measure.values import Values

BLOCK_ON_CPU, BLOCK_ELSEWHERE = 1 << 16, 1 << 24
"""The number of values worked on at once, which bounds the memory of temporaries; on the CPU they fit the cache."""

MAX_SAMPLED_ROWS = 256
"""Maximum number of positions (vectors over the channels, of all samples) that are sampled from a tensor."""

MAX_SAMPLED_CHANNELS = 64
"""Maximum number of channels that are sampled from a tensor."""

_GOLDEN = (math.sqrt(5) - 1) / 2

_PAIRS = np.tril_indices(MAX_SAMPLED_CHANNELS)

ROUNDING_VARIANCE_SHARE = 1e-28
"""A variance up to this share of the squared mean may come from rounding in float64 alone, and counts as 0; both are
summed over the channels."""


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


@dataclass(frozen=True)
class Tails(Columns):
    """Measures the cube root of the third central moment and the fourth root of the fourth.

    Roots have the unit of the values, so they cannot overflow. `mean` and `deviation` must be among the moments.
    """

    width = 2

    def measure(self, tensor: Tensor, values: Values, row: Tensor, dim: int | None) -> Tensor:
        """Return the two roots for one tensor."""
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

    def merge(self, numbers: Tensor, rows: Tensor, owner: Tensor | slice, merged: Tensor) -> Merging[Tensor]:
        """Merge what `measure` returned by the formula of Pebay, an extension of Chan's, see `Columns.merge`."""
        # Pebay, "Formulas for robust, one-pass parallel computation of covariances and arbitrary-order statistical
        # moments", 2008, for any number of parts.
        unit = unit_of(merged[:, 8], merged[:, 9])
        parts = torch.cat([rows[:, 1:3], numbers], dim=1).where(rows[:, :1] != 0, 0) / unit[owner, None]
        mean, deviation, third, fourth = parts.unbind(1)
        away, square = mean - (merged[:, 1] / unit)[owner], deviation.square()
        cubes = third**3 + 3 * away * square + away**3
        fourths = fourth**4 + 4 * away * third**3 + 6 * away.square() * square + away**4
        (sums,) = yield [("sum", rows[:, :1] * torch.stack([cubes, fourths], dim=1))]
        return _roots(sums / merged[:, :1].clamp(min=1)) * unit[:, None]


def _blocks(values: Values) -> Sequence[Tensor]:
    blocks: Sequence[Tensor] = values.numbers.split(BLOCK_ON_CPU if values.numbers.is_cpu else BLOCK_ELSEWHERE)
    return blocks


def _roots(moments: Tensor) -> Tensor:
    """Return the cube root of the first number and the fourth root of the second, shape (..., 2)."""
    third, fourth = moments.unbind(-1)
    return torch.stack([third.sign() * third.abs() ** (1 / 3), fourth.clamp(min=0).sqrt().sqrt()], dim=-1)


@dataclass(frozen=True)
class SaturatedCount(Columns):
    """Counts the finite values that are at or below a lower limit, or at or above an upper one.

    Args:
        limits: the lower and the upper limit; None for a site whose values are not bounded, which gives NaN.
    """

    limits: tuple[float, float] | None = None

    width = 1

    def measure(self, tensor: Tensor, values: Values, row: Tensor, dim: int | None) -> Tensor:
        """Return the count of one tensor, shape (1,); NaN without limits."""
        if self.limits is None:
            return row.new_full((1,), torch.nan)
        low, high = self.limits
        found = -row[6:8].sum(0, keepdim=True)  # infinities lie beyond the limits
        if low >= 0 or high <= 0:
            found += values.zeros
        for block in _blocks(values):
            wide = block.double()  # in half precision the limits would be rounded
            found += torch.count_nonzero(wide <= low) + torch.count_nonzero(wide >= high)
        return found

    def merge(self, numbers: Tensor, rows: Tensor, owner: Tensor | slice, merged: Tensor) -> Merging[Tensor]:
        """Return the sum of the counts, shape (owners, 1)."""
        return (yield from once("sum", numbers.where(rows[:, :1] != 0, 0)))


class Covariance(Columns):
    """Measures the covariance of the channels, from a sample of at most 256 positions and 64 channels.

    Columns: the numbers of sampled positions and of channels, the mean of each sampled channel, and the lower triangle
    of the covariance, row by row with the diagonal; 0 for channels beyond the sampled ones. A position is one vector
    over the channels; one with NaN or infinities is left out. Values are divided by `unit_of` the tensor's min and max
    first, so that no square overflows.
    """

    width = 2 + MAX_SAMPLED_CHANNELS + len(_PAIRS[0])

    def measure(self, tensor: Tensor, values: Values, row: Tensor, dim: int | None) -> Tensor:
        """Return the columns of one tensor; all NaN if it has no channels."""
        numbers = row.new_zeros(self.width)
        if dim is None:
            return numbers.fill_(math.nan)
        sample = _sample(tensor, dim).double() / unit_of(row[8], row[9])
        sampled = sample.shape[1]
        is_whole = sample.isfinite().all(1, keepdim=True)
        sample = sample.where(is_whole, 0)
        count = is_whole.sum()
        means = sample.sum(0) / count.clamp(min=1)
        away = (sample - means).where(is_whole, 0)
        square = row.new_zeros(MAX_SAMPLED_CHANNELS, MAX_SAMPLED_CHANNELS)
        square[:sampled, :sampled] = away.T @ away / count.clamp(min=1)
        numbers[0], numbers[1] = count, tensor.shape[dim]
        numbers[2 : 2 + sampled] = means
        first, second = _pairs(row.device)
        numbers[2 + MAX_SAMPLED_CHANNELS :] = square[first, second]
        return numbers

    def merge(self, numbers: Tensor, rows: Tensor, owner: Tensor | slice, merged: Tensor) -> Merging[Tensor]:
        """Merge by Chan's formula for each pair of channels.

        The first column is NaN if the tensors differ in the number of channels, or none has a finite value.
        """
        is_there = rows[:, :1] != 0
        numbers = numbers.where(is_there, 0)
        scale = unit_of(rows[:, 8], rows[:, 9]) / unit_of(merged[:, 8], merged[:, 9])[owner]
        scale = scale[:, None].where(is_there, 0)
        count, channels, means, square = numbers.split([1, 1, MAX_SAMPLED_CHANNELS, len(_PAIRS[0])], dim=1)
        means, square = means * scale, square * scale.square()
        # Of rows without channels, which are NaN, the count tells.
        ends = torch.cat([channels.nan_to_num(), (-channels.nan_to_num()).where(is_there, -math.inf)], dim=1)
        sums, ends = yield [("sum", torch.cat([count, count * means], dim=1)), ("max", ends)]
        total, most, least = sums[:, :1], ends[:, :1].clamp(min=0), -ends[:, 1:]
        mean = sums[:, 1:] / total.clamp(min=1)
        away = means - mean[owner]
        first, second = _pairs(rows.device)
        (squares,) = yield [("sum", count * (square + away[:, first] * away[:, second]))]
        square = squares / total.clamp(min=1)
        return torch.cat([total.where(most == least, math.nan), most, mean, square], dim=1)


def effective_rank(numbers: list[float]) -> float:
    """Return the effective rank of the covariance: `exp` of the entropy of its eigenvalues as shares of their sum.

    Roy and Vetterli, "The effective rank: a measure of effective dimensionality", EUSIPCO 2007. 0 if no channel varies.

    Args:
        numbers: the columns that `Covariance` measures, merged.

    Returns:
        NaN if every sampled position had a value that is not finite.
    """
    count, channels = numbers[0], min(int(numbers[1]), MAX_SAMPLED_CHANNELS)
    if not count:
        return math.nan
    square = np.zeros((MAX_SAMPLED_CHANNELS, MAX_SAMPLED_CHANNELS))
    square[_PAIRS] = numbers[2 + MAX_SAMPLED_CHANNELS :]
    values = np.linalg.eigvalsh(square[:channels, :channels]).clip(min=0)  # which reads the lower triangle
    whole, means = float(values.sum()), np.array(numbers[2 : 2 + channels])
    if whole <= ROUNDING_VARIANCE_SHARE * float(means @ means):
        return 0.0
    shares = values[values > 0] / whole
    return math.exp(-float(shares @ np.log(shares)))


def _sample(tensor: Tensor, dim: int) -> Tensor:
    """Return sampled positions x channels of a tensor, at most (MAX_SAMPLED_ROWS, MAX_SAMPLED_CHANNELS)."""
    moved = tensor.movedim(dim, -1)
    *places, channels = moved.shape
    chosen = np.unravel_index(spread(math.prod(places), MAX_SAMPLED_ROWS), places) if places else ()
    rows = moved[tuple(_on(index, tensor.device) for index in chosen)] if places else moved[None]
    return (
        rows
        if channels <= MAX_SAMPLED_CHANNELS
        else rows[:, _on(spread(channels, MAX_SAMPLED_CHANNELS), tensor.device)]
    )


def spread(size: int, most: int) -> np.ndarray:
    """Return `most` ascending indices below `size`, one from each of equal parts, irregularly spaced; all if fewer.

    >>> spread(1000, 4).tolist()
    [0, 404, 559, 963]
    """
    if size <= most:
        return np.arange(size)
    part = np.arange(most)
    return ((part + part * _GOLDEN % 1) * (size / most)).astype(np.int64)


def _pairs(device: torch.device) -> tuple[Tensor, Tensor]:
    first, second = _PAIRS
    return _on(first, device), _on(second, device)


def _on(indices: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(indices).to(device, non_blocking=True)
