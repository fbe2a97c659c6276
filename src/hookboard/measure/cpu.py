"""Measures values on the CPU by torch's operations, in float64, where the compiled kernel cannot read them itself."""

import math

import torch
from torch import Tensor

from hookboard.measure import native
from hookboard.measure.histogram import BINS, as_single, bins_of
from hookboard.measure.merge import merge
from hookboard.measure.row import EMPTY
from hookboard.measure.values import Values

BLOCK = 1 << 18
"""The number of elements worked on at once: fewer need more calls, more displace the model's data from the cache.

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


def row_of(values: Values, wanted: frozenset[str]) -> list[float]:
    """Return the row of the values, WIDTH floats; columns of `REQUESTABLE` that are not in `wanted` may be 0."""
    whole = _read(values.numbers, wanted)
    rows = [whole] if whole else [_row_of_block(block, wanted) for block in values.numbers.split(BLOCK)]
    if values.zeros:
        rows.append([values.zeros, 0.0, 0.0, 0.0, values.zeros, 0.0, 0.0, 0.0, 0.0, 0.0])
    if len(rows) == 1:
        return rows[0]
    owner = torch.zeros(len(rows), dtype=torch.long, device="cpu")
    merged: list[float] = merge(torch.tensor(rows, dtype=torch.float64, device="cpu"), owner, 1)[0].tolist()
    return merged


def _read(numbers: Tensor, wanted: frozenset[str]) -> list[float] | None:
    """Measure numbers by the kernel; None if it cannot read them, or if float64 cannot hold their squares."""
    form = native.form_of(numbers)
    return None if form is None else native.read(numbers, form, with_abs_mean="abs_mean" in wanted)[0]


def _row_of_block(block: Tensor, wanted: frozenset[str]) -> list[float]:
    if not block.numel():
        return list(EMPTY)
    block = _as_float(block)
    row = _read(block, wanted)
    if row:
        return row
    low, high = (extreme.item() for extreme in torch.aminmax(block))
    if math.isfinite(low) and math.isfinite(high):
        return _row_of_finite(block, low, high, wanted)
    row = _row_of_block(block[torch.isfinite(block)], wanted)
    row[5:8] = [found.sum().item() for found in (block.isnan(), block == math.inf, block == -math.inf)]
    return row


def _as_float(block: Tensor) -> Tensor:
    """Convert a block to a contiguous tensor: float32 if that represents all values of its dtype, otherwise float64."""
    if block.dtype in (torch.float32, torch.float64):
        return block.contiguous()
    is_single = block.dtype.is_floating_point or block.dtype in EXACT_AS_FLOAT32
    return block.to(torch.float32 if is_single else torch.float64).contiguous()


def _row_of_finite(block: Tensor, low: float, high: float, wanted: frozenset[str]) -> list[float]:
    count = block.numel()
    mean = deviation = abs_mean = zeros = 0.0
    if "zeros" in wanted and low <= 0 <= high:
        # torch vectorizes comparisons only if the result has the dtype of the operand.
        zeros = torch.eq(block, 0, out=torch.empty_like(block)).sum().item()
    if wanted & {"mean", "deviation", "abs_mean"}:
        wide = block.to(torch.float64, copy=True)
        size, unit = max(-low, high), 1.0
        if size and not SAFE_RANGE[0] < size < SAFE_RANGE[1]:
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
        about_mean = torch.dot(away, away).item() - away.sum().item() ** 2 / wide.numel()
    return about_mean


def count_into(counts: Tensor, values: Values) -> None:
    """Add the bins of the values to `counts`, shape (BINS,), int64."""
    if not _count(counts, values.numbers):
        for block in values.numbers.split(BLOCK):
            if _count(counts, block):
                continue
            block = _as_float(block)
            if not _count(counts, block):
                native.add_counts(counts, torch.bincount(bins_of(as_single(block)), minlength=BINS))
    if values.zeros:
        zeros = torch.zeros(BINS, dtype=torch.long, device="cpu")
        zeros[0] = values.zeros
        native.add_counts(counts, zeros)


def _count(counts: Tensor, numbers: Tensor) -> bool:
    """Add the bins of numbers to `counts` by the kernel; False if it cannot read them."""
    form = native.form_of(numbers)
    if form is None:
        return False
    native.read(numbers, form, with_abs_mean=False, counts=counts)
    return True
