"""Measures values by torch's operations, where no kernel reads the tensor as it is. The host waits for no device."""

import math

import torch
from torch import Tensor

from hookboard.measure import native
from hookboard.measure.histogram import BINS, as_single, bins_of
from hookboard.measure.merge import merge
from hookboard.measure.row import EMPTY, WIDTH, ChannelRows, Row, unit_of
from hookboard.measure.values import Values

BLOCK = 1 << 22
"""The number of elements measured at once, which bounds the memory of temporaries to some 80 MB: this is where a tensor
is measured if the device lacks memory for a kernel."""

BLOCK_ON_HOST = 1 << 18
"""The same on the CPU: fewer need more calls, more displace the model's data from the cache.

No buffers are kept for temporaries: the C library reuses their memory, so that would save no time (measured).
"""

MIN_VARIANCE_SHARE = 1e-6
"""If the variance is a smaller share than this of the mean square, it is computed again about the mean."""

SAFE_RANGE = (1e-100, 1e100)
"""Largest magnitudes between which no square leaves the range of float64."""

EXACT_AS_FLOAT32 = {
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16),
    *(torch.float32, torch.bfloat16, torch.float16),
}
"""The dtypes all of whose values float32 can represent."""


def row_of(values: Values, wanted: frozenset[str]) -> Row:
    """Measure the values; columns of `REQUESTABLE` that are not in `wanted` may be 0."""
    numbers = values.numbers
    found = by_kernel(numbers, None, wanted)
    blocks = () if found is not None else numbers.split(BLOCK_ON_HOST if may_wait_for(numbers) else BLOCK)
    rows = [found[0]] if found is not None else [_row_of_block(block, wanted) for block in blocks]
    if values.zeros:
        zeros = torch.zeros(WIDTH, dtype=torch.float64, device=numbers.device)
        zeros[0], zeros[4] = values.zeros, values.zeros
        rows.append(zeros)
    row = rows[0] if len(rows) == 1 else _merged(torch.stack([_as_tensor(each, numbers) for each in rows]))
    if values.holes is not None:
        row = _as_tensor(row, numbers)
        row[5] -= values.holes  # they are NaN, and were counted as such
    return row


def rows_of(tensor: Tensor, dim: int, wanted: frozenset[str]) -> tuple[Row, ChannelRows]:
    """Return the row of a plain, dense and real tensor, and the rows of its channels, shape (channels, WIDTH)."""
    if tensor.is_cpu:
        tensor = _as_float(tensor)
    found = by_kernel(tensor, dim, wanted)
    if found is not None and found[1] is not None:
        return found[0], found[1]
    channels = rows_of_channels(tensor, dim, wanted)
    return _merged(channels), channels.numpy() if channels.is_cpu else channels


def by_kernel(tensor: Tensor, dim: int | None, wanted: frozenset[str]) -> tuple[Row, ChannelRows | None] | None:
    """Return what the kernel in C measures of a plain tensor.

    None if it cannot read it, or if float64 cannot hold the squares of its values.
    """
    found = native.measure(tensor, dim, with_abs_mean="abs_mean" in wanted)
    return None if found is None or found[0] is None else (found[0], found[1])


def may_wait_for(tensor: Tensor) -> bool:
    """Return True if the host may look at the values of a tensor: on the CPU it need not wait for them."""
    return tensor.is_cpu


def _as_tensor(row: Row, like: Tensor) -> Tensor:
    return torch.as_tensor(row, dtype=torch.float64, device=like.device)


def _merged(rows: Tensor) -> Tensor:
    merged: Tensor = merge(rows, torch.zeros(len(rows), dtype=torch.long, device=rows.device), 1)[0]
    return merged


def _empty_rows(count: int, device: torch.device) -> Tensor:
    """Return rows of tensors without elements, shape (count, WIDTH), float64."""
    rows = torch.zeros(count, WIDTH, dtype=torch.float64, device=device)
    rows[:, 8], rows[:, 9] = EMPTY[8:]
    return rows


def _as_float(block: Tensor) -> Tensor:
    """Convert a block to a contiguous tensor: float32 if that represents all values of its dtype, otherwise float64."""
    is_single = block.dtype in EXACT_AS_FLOAT32 or (block.dtype.is_floating_point and block.dtype.itemsize < 4)
    return block.to(torch.float32 if is_single else torch.float64).contiguous()


def _row_of_block(block: Tensor, wanted: frozenset[str]) -> Row:
    if not block.numel():
        return _empty_rows(1, block.device)[0]
    if not may_wait_for(block):
        return _rows_of_block(block.reshape(1, -1), 0, wanted)[0]
    block = _as_float(block)
    found = by_kernel(block, None, wanted)
    if found is not None:
        return found[0]
    low, high = (extreme.item() for extreme in torch.aminmax(block))
    if math.isfinite(low) and math.isfinite(high):
        return _row_of_finite(block, low, high, wanted)
    row = _as_tensor(_row_of_block(block[torch.isfinite(block)], wanted), block)
    row[5:8] = torch.stack([found.sum() for found in (block.isnan(), block == math.inf, block == -math.inf)])
    return row


def _row_of_finite(block: Tensor, low: float, high: float, wanted: frozenset[str]) -> list[float]:
    """Measure a block on the CPU without NaN and infinities; ten times as fast as `_rows_of_block` there."""
    count = block.numel()
    mean = deviation = abs_mean = zeros = 0.0
    if "zeros" in wanted and low <= 0 <= high:
        # torch vectorizes comparisons only if the result has the dtype of the operand.
        zeros = torch.eq(block, 0, out=torch.empty_like(block)).sum().item()
    if wanted & {"mean", "deviation", "abs_mean"}:
        wide = block.to(torch.float64, copy=True)
        size, unit = max(-low, high), 1.0
        if size and not SAFE_RANGE[0] < size < SAFE_RANGE[1]:
            # A power of two: dividing by it is exact.
            unit = 2.0 ** (math.frexp(size)[1] - 1)
            wide.div_(unit)
        total = wide.sum().item()
        mean = total / count
        if "deviation" in wanted:
            deviation = unit * math.sqrt(max(0.0, _squares_about(mean, total, wide)) / count)
        if "abs_mean" in wanted:
            one_signed = low >= 0 or high <= 0
            abs_mean = (abs(total) if one_signed else wide.abs_().sum().item()) / count * unit
        mean *= unit
    return [count, mean, deviation, abs_mean, zeros, 0.0, 0.0, 0.0, low, high]


def _squares_about(mean: float, total: float, wide: Tensor) -> float:
    """Return the sum of squared differences of `wide` from its mean, where `total` is its sum."""
    squares = torch.dot(wide, wide).item()
    about_mean = squares - total * mean
    if about_mean < MIN_VARIANCE_SHARE * squares:
        away = wide - mean
        # The second term corrects for the rounding of `mean`.
        about_mean = torch.dot(away, away).item() - away.sum().item() ** 2 / wide.numel()
    return about_mean


def rows_of_channels(tensor: Tensor, dim: int, wanted: frozenset[str]) -> Tensor:
    """Return the row of each channel by torch's operations, on any device, shape (channels, WIDTH), float64."""
    if not tensor.numel():
        return _empty_rows(tensor.shape[dim], tensor.device)
    if tensor.numel() > BLOCK and tensor.dim() > 1:
        along = max((d for d in range(tensor.dim()) if d != dim), key=tensor.size)
        if tensor.shape[along] > 1:
            halves = [rows_of_channels(half, dim, wanted) for half in tensor.tensor_split(2, along)]
            owner = torch.arange(tensor.shape[dim], device=tensor.device).repeat(2)
            return merge(torch.cat(halves), owner, tensor.shape[dim])
    return _rows_of_block(tensor, dim, wanted)


def _rows_of_block(block: Tensor, dim: int, wanted: frozenset[str]) -> Tensor:
    """Return the row of each channel by torch's operations, shape (channels, WIDTH), float64.

    Values are taken as float32 (float64 and integers as float64) in units of the channel's largest one, so that no
    difference overflows; they are summed in float64.
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
    is_host = may_wait_for(values.numbers)
    for block in values.numbers.split(BLOCK_ON_HOST if is_host else BLOCK):
        if native.measure(block, with_abs_mean=False, counts=counts) is not None:
            continue
        single = as_single(block)
        if native.measure(single, with_abs_mean=False, counts=counts) is not None:
            continue
        bins = bins_of(single)
        # `bincount` would make the host wait; `index_add_` adds to one bin after the other, which took 13 to 33 times
        # as long on an H200. Counts are the same in any order, but torch refuses `histc` if all must be deterministic.
        if is_host:
            counts += torch.bincount(bins, minlength=BINS)
        elif counts.is_cuda and not torch.are_deterministic_algorithms_enabled():
            counts += torch.histc(bins, BINS, 0, BINS)
        else:
            counts.index_add_(0, bins, counts.new_ones(1).expand(bins.numel()))
    if values.zeros:
        # The first bin begins at 0.
        counts[:1] += values.zeros
