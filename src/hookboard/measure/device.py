"""Rows and bin counts on any device, by torch's operations. The host reads nothing back: it would have to wait."""

import math

import torch
from torch import Tensor

from hookboard.measure.bins import as_single, bins_of
from hookboard.measure.merge import merge, unit_of
from hookboard.measure.row import EMPTY
from hookboard.measure.values import Values

BLOCK = 1 << 26
"""Elements measured at once: bounds the memory of the temporaries."""


def row_of(values: Values, wanted: frozenset[str]) -> Tensor:
    """The row of the values with at least the columns that are wanted, shape (WIDTH,), float64, on their device."""
    numbers = values.numbers
    rows = [row_of_block(block, wanted) for block in numbers.split(BLOCK)]
    if values.zeros:
        zeros = [values.zeros, 0.0, 0.0, 0.0, values.zeros, 0.0, 0.0, 0.0, 0.0, 0.0]
        rows.append(torch.tensor(zeros, dtype=torch.float64, device=numbers.device))
    owner = torch.zeros(len(rows), dtype=torch.long, device=numbers.device)
    row = rows[0] if len(rows) == 1 else merge(torch.stack(rows), owner, 1)[0]
    if values.holes is not None:
        row[5] -= values.holes
    return row


def row_of_block(block: Tensor, wanted: frozenset[str]) -> Tensor:
    """The row of a real tensor of any shape.

    Values are taken as float32 (float64 and integers as float64) in units of the largest one, so that no difference
    leaves that type; they are summed in float64.
    """
    wide = torch.float64
    if not block.numel():
        return torch.tensor(EMPTY, dtype=wide, device=block.device)
    if block.dtype is not wide:
        block = block.float() if block.dtype.is_floating_point else block.double()
    finite = block.isfinite()
    low = block.where(finite, math.inf).amin()
    high = block.where(finite, -math.inf).amax()
    unit = unit_of(low, high)
    count = finite.sum(dtype=wide)
    at_least_one = count.clamp(min=1)
    clean = (block / unit).where(finite, 0)
    mean = squares = abs_mean = zeros = torch.zeros((), dtype=wide, device=block.device)
    if wanted & {"mean", "deviation"}:
        mean = clean.sum(dtype=wide) / at_least_one
    if "deviation" in wanted:
        # The differences are from the mean as the block's own type has it; the second term mends what that lost.
        away = (clean - mean.to(block.dtype)).where(finite, 0)
        norm = torch.linalg.vector_norm(away, dtype=wide)
        squares = (norm.square() - away.sum(dtype=wide).square() / at_least_one).clamp(min=0)
    if "abs_mean" in wanted:
        abs_mean = clean.abs().sum(dtype=wide) / at_least_one
    if "zeros" in wanted:
        zeros = (block == 0).sum(dtype=wide)
    nonfinite = [found.sum(dtype=wide) for found in (block.isnan(), block == math.inf, block == -math.inf)]
    means = torch.stack([mean, (squares / at_least_one).sqrt(), abs_mean]) * unit
    return torch.cat([count[None], means, torch.stack([zeros, *nonfinite, low.to(wide), high.to(wide)])])


def count_into(counts: Tensor, values: Values) -> None:
    """Add the bins of the values to `counts`, shape (BINS,), int64, on their device."""
    for block in values.numbers.split(BLOCK):
        bins = bins_of(as_single(block))
        # bincount would make the host wait. To add is atomic on a device, for as many streams as there are.
        counts.index_add_(0, bins, counts.new_ones(1).expand(bins.numel()))
    if values.zeros:
        counts[:1] += values.zeros
