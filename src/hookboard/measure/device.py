"""Measures values on any device, by torch's operations where no kernel can. The host never waits for the device."""

import math

import torch
from torch import Tensor

from hookboard.measure import accelerator
from hookboard.measure.histogram import BINS, as_single, bins_of
from hookboard.measure.merge import merge
from hookboard.measure.row import EMPTY, WIDTH, unit_of
from hookboard.measure.values import Values

WITHOUT_FLOAT64 = frozenset({"mps"})
"""Types of devices without float64, which sums need; tensors there are copied to the CPU to be measured."""

BLOCK = 1 << 22
"""The number of elements measured at once, which bounds the memory of temporaries to some 80 MB: this is where a tensor
is measured if the device lacks memory for a kernel."""


def row_of(values: Values, wanted: frozenset[str]) -> Tensor:
    """Measure the values.

    Returns:
        Their row, shape (WIDTH,), float64, on their device. Columns of `REQUESTABLE` that are not in `wanted` are 0.
    """
    numbers = values.numbers
    found = rows_by_kernel(numbers, None, wanted)
    rows = [row_of_block(block, wanted) for block in numbers.split(BLOCK)] if found is None else [found[0]]
    if values.zeros:
        zeros = torch.zeros(WIDTH, dtype=torch.float64, device=numbers.device)
        zeros[0], zeros[4] = values.zeros, values.zeros
        rows.append(zeros)
    owner = torch.zeros(len(rows), dtype=torch.long, device=numbers.device)
    row = rows[0] if len(rows) == 1 else merge(torch.stack(rows), owner, 1)[0]
    if values.holes is not None:
        row[5] -= values.holes
    return row


def rows_by_kernel(tensor: Tensor, dim: int | None, wanted: frozenset[str]) -> Tensor | None:
    """Return the row of a tensor, then those of its channels, see `accelerator.job_of`; None if no kernel can.

    Args:
        tensor: plain, on any device.
        dim: the dimension of the channels; None for no channels.
        wanted: the columns to fill.
    """
    job = accelerator.job_of(tensor, dim)
    if job is None:
        return None
    rows = accelerator.new_rows(job.rows, tensor.device)
    target = accelerator.Target(job, rows, is_fresh=True, counts=None)
    return rows if accelerator.measure(target, with_abs_mean="abs_mean" in wanted) else None


def empty_rows(count: int, device: torch.device) -> Tensor:
    """Return rows of tensors without elements, shape (count, WIDTH), float64."""
    rows = torch.zeros(count, WIDTH, dtype=torch.float64, device=device)
    rows[:, 8], rows[:, 9] = EMPTY[8:]
    return rows


def row_of_block(block: Tensor, wanted: frozenset[str]) -> Tensor:
    """Return the row of a real tensor of any shape by torch's operations, shape (WIDTH,), float64."""
    if not block.numel():
        return empty_rows(1, block.device)[0]
    return rows_of_block(block.reshape(1, -1), 0, wanted)[0]


def rows_of_block(block: Tensor, dim: int, wanted: frozenset[str]) -> Tensor:
    """Return the row of each channel by torch's operations, shape (channels, WIDTH), float64.

    Values are taken as float32 (float64 and integers as float64) in units of the channel's largest one, so that no
    difference overflows; they are summed in float64.

    Args:
        block: real, of any shape, not empty.
        dim: the dimension whose indices are the channels, not negative.
        wanted: the columns to fill.
    """
    wide = torch.float64
    block = block.unsqueeze(-1)  # reductions over no dimension at all would be over every dimension
    others = [d for d in range(block.dim()) if d != dim]
    if block.dtype is not wide:
        block = block.float() if block.dtype.is_floating_point else block.double()
    finite = block.isfinite()
    low = block.where(finite, math.inf).amin(others, keepdim=True)
    high = block.where(finite, -math.inf).amax(others, keepdim=True)
    unit = unit_of(low, high)
    count = finite.sum(others, keepdim=True, dtype=wide)
    at_least_one = count.clamp(min=1)
    clean = (block / unit).where(finite, 0)
    mean = squares = abs_mean = zeros = torch.zeros_like(count)
    if wanted & {"mean", "deviation"}:
        mean = clean.sum(others, keepdim=True, dtype=wide) / at_least_one
    if "deviation" in wanted:
        # The differences are from the mean as the block's own type has it; the second term corrects what that lost.
        away = (clean - mean.to(block.dtype)).where(finite, 0)
        norm = torch.linalg.vector_norm(away, dim=others, keepdim=True, dtype=wide)
        lost = away.sum(others, keepdim=True, dtype=wide).square() / at_least_one
        squares = (norm.square() - lost).clamp(min=0)
    if "abs_mean" in wanted:
        abs_mean = clean.abs().sum(others, keepdim=True, dtype=wide) / at_least_one
    if "zeros" in wanted:
        zeros = (block == 0).sum(others, keepdim=True, dtype=wide)
    nan, posinf, neginf = (
        found.sum(others, keepdim=True, dtype=wide) for found in (block.isnan(), block == math.inf, block == -math.inf)
    )
    means = [mean * unit, (squares / at_least_one).sqrt() * unit, abs_mean * unit]
    columns = [count, *means, zeros, nan, posinf, neginf, low.to(wide), high.to(wide)]
    return torch.stack([column.flatten() for column in columns], dim=1)


def count_into(counts: Tensor, values: Values) -> None:
    """Add the bins of the values to `counts`, shape (BINS,), int64, on their device."""
    for block in values.numbers.split(BLOCK):
        bins = bins_of(as_single(block))
        # `bincount` would make the host wait; `index_add_` adds to one bin after the other, which took 13 to 33 times
        # as long on an H200. Counts are the same in any order, but torch refuses `histc` if all must be deterministic.
        if counts.is_cuda and not torch.are_deterministic_algorithms_enabled():
            counts += torch.histc(bins, BINS, 0, BINS)
        else:
            counts.index_add_(0, bins, counts.new_ones(1).expand(bins.numel()))
    if values.zeros:
        counts[:1] += values.zeros


def needs_host(device: torch.device) -> bool:
    """Return True if tensors of this device are measured on the CPU, because the device has no float64."""
    return device.type in WITHOUT_FLOAT64


def measuring_device(device: torch.device) -> torch.device:
    """Return the device on which tensors of a device are measured: itself, or the CPU if it has no float64.

    >>> measuring_device(torch.device("mps"))
    device(type='cpu')
    """
    return torch.device("cpu") if needs_host(device) else device
