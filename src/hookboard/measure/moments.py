"""The row: what is known of a set of numbers, in a form that merges exactly."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

try:
    from hookboard.measure import _native
except ImportError:  # there was no C compiler when hookboard was installed
    _native = None  # type: ignore[assignment]

FIELDS = ("count", "mean", "m2", "abs_sum", "zeros", "nan", "posinf", "neginf", "min", "max")
"""The columns of a row.

count: the finite values; all columns but the next three speak of these alone.
nan, posinf, neginf: the values that are not finite.
mean, m2: the mean, and the sum of squared differences from it.
abs_sum: the sum of absolute values. zeros: how many are 0. min, max: inf and -inf where count is 0.
"""

WIDTH = len(FIELDS)

REQUESTABLE = frozenset({"mean", "m2", "abs_sum", "zeros"})
"""Columns that may cost a read of their own and need not be filled where no statistic needs them."""

SUMS = frozenset({"mean", "m2", "abs_sum"})

EMPTY = (0.0,) * 8 + (math.inf, -math.inf)
"""The row of no values."""

Row = list[float] | Tensor

BLOCK = 1 << 18
"""Elements that torch measures at once on the CPU: fewer cost more calls, more drive the model out of the cache."""

DEVICE_BLOCK = 1 << 26
"""Elements measured at once elsewhere: bounds the memory of the temporaries."""

MOST_VIEWS = 1000
"""Sizes for which the scratch memory keeps its slices."""

CANCELLATION = 1e-6
"""Where the variance is a smaller part than this of the mean square, it is computed again about the mean."""


def elements_in(rows: Tensor) -> Tensor:
    """How many values each row speaks of, finite or not; shape (..., at least WIDTH) to (...)."""
    return rows[..., 0] + rows[..., 5:8].sum(-1)


@dataclass(frozen=True, slots=True)
class Moments:
    """One row on the host; a column that was not asked for is NaN."""

    count: float
    mean: float
    m2: float
    abs_sum: float
    zeros: float
    nan: float
    posinf: float
    neginf: float
    min: float
    max: float

    @property
    def nonfinite(self) -> float:
        """How many values are NaN or infinite."""
        return self.nan + self.posinf + self.neginf


class Scratch:
    """Memory for one block, kept between calls: fresh temporaries cost more than the arithmetic."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype], Tensor] = {}
        self._views: dict[tuple[str, torch.dtype, int], Tensor] = {}

    def take(self, purpose: str, dtype: torch.dtype, size: int) -> Tensor:
        """An uninitialized CPU tensor of this size, valid until the next call for the same purpose."""
        view = self._views.get((purpose, dtype, size))
        if view is None:
            if len(self._views) >= MOST_VIEWS:  # sequences of ever new lengths
                self._views.clear()
            view = self._views[purpose, dtype, size] = self._buffer(purpose, dtype, size)[:size]
        return view

    def _buffer(self, purpose: str, dtype: torch.dtype, size: int) -> Tensor:
        buffer = self._buffers.get((purpose, dtype))
        if buffer is None or buffer.numel() < size:
            # A tensor made under inference_mode could never be written to outside of it.
            with torch.inference_mode(False):
                buffer = self._buffers[purpose, dtype] = torch.empty(size, dtype=dtype, device="cpu")
            self._views = {key: view for key, view in self._views.items() if key[:2] != (purpose, dtype)}
        return buffer


def measure(values: Tensor, implicit_zeros: int, wanted: frozenset[str], scratch: Scratch) -> Row:
    """The row of a flat real tensor.

    On the CPU the arithmetic is float64 throughout. Elsewhere the host reads nothing back: values are taken as
    float32 (as float64 if they are that) and summed in float64.

    Args:
        values: shape (n,), any real dtype.
        implicit_zeros: zeros that belong to the tensor but are not in `values`.
        wanted: those of `REQUESTABLE` to fill; the others may be left 0.
        scratch: memory to work in.

    Returns:
        The columns in the order of `FIELDS`: as floats, or, off the CPU, as a float64 tensor on the device.
    """
    if values.device.type == "cpu":
        is_one_pass = values.numel() <= BLOCK or (_native is not None and values.dtype is torch.float32)
        blocks = [values] if is_one_pass else values.split(BLOCK)
        rows = [_measure_on_cpu(block, wanted, scratch) for block in blocks]
        if implicit_zeros:
            rows.append(_row(count=implicit_zeros, zeros=implicit_zeros, low=0.0, high=0.0))
        return rows[0] if len(rows) == 1 else _merge_all(torch.tensor(rows, dtype=torch.float64)).tolist()
    device_rows = [measure_without_waiting(block, wanted) for block in values.split(DEVICE_BLOCK)]
    if implicit_zeros:
        zeros = _row(count=implicit_zeros, zeros=implicit_zeros, low=0.0, high=0.0)
        device_rows.append(torch.tensor(zeros, dtype=torch.float64, device=values.device))
    return device_rows[0] if len(device_rows) == 1 else _merge_all(torch.stack(device_rows))


def _merge_all(rows: Tensor) -> Tensor:
    return merge(rows, torch.zeros(len(rows), dtype=torch.long, device=rows.device), 1)[0]


def merge(rows: Tensor, owner: Tensor, owners: int) -> Tensor:
    """Merge the rows that belong together, as if all their numbers had been measured at once.

    The parallel algorithm of Chan, Golub and LeVeque ("Updating formulae and a pairwise algorithm for computing
    sample variances", 1979) for any number of parts: with `n = sum n_i`,

        mean = sum(n_i mean_i) / n,    m2 = sum(m2_i + n_i (mean_i - mean)^2)

    Args:
        rows: shape (n, len(FIELDS)), float64.
        owner: shape (n,), int64: which of the results each row goes into.
        owners: how many results there are.

    Returns:
        Shape (owners, len(FIELDS)); an owner without rows gets the row of an empty tensor.
    """
    merged = rows.new_zeros(owners, len(FIELDS)).index_add_(0, owner, rows)
    count, mean = merged[:, 0], merged[:, 1]
    mean.zero_().index_add_(0, owner, rows[:, 0] * rows[:, 1]).div_(count.clamp(min=1))
    merged[:, 2].index_add_(0, owner, rows[:, 0] * (rows[:, 1] - mean[owner]).square())
    low, high = merged[:, 8], merged[:, 9]
    low.fill_(math.inf).scatter_reduce_(0, owner, rows[:, 8], "amin")
    high.fill_(-math.inf).scatter_reduce_(0, owner, rows[:, 9], "amax")
    return merged


def merge_pair(one: Tensor, other: Tensor) -> Tensor:
    """Merge two rows of shape (len(FIELDS),), by `merge`'s formula for two parts.

    It works in place of `merge` inside a compiled graph, where it melts into the kernels that measure.
    """
    count = one[0] + other[0]
    share = other[0] / count.clamp(min=1)
    away = other[1] - one[1]
    mean = one[1] + away * share
    m2 = one[2] + other[2] + away.square() * one[0] * share
    sums = one[3:8] + other[3:8]
    extremes = torch.stack([torch.minimum(one[8], other[8]), torch.maximum(one[9], other[9])])
    return torch.cat([torch.stack([count, mean, m2]), sums, extremes])


def _row(
    count: float = 0,
    mean: float = 0,
    m2: float = 0,
    abs_sum: float = 0,
    zeros: float = 0,
    low: float = math.inf,
    high: float = -math.inf,
) -> list[float]:
    return [count, mean, m2, abs_sum, zeros, 0, 0, 0, low, high]


def _measure_on_cpu(block: Tensor, wanted: frozenset[str], scratch: Scratch) -> list[float]:
    if not block.numel():
        return list(EMPTY)
    block = _as_float(block, scratch)
    if _native is not None and block.dtype is torch.float32:
        return _native.measure(block.data_ptr(), block.numel(), "abs_sum" in wanted)
    low, high = (extreme.item() for extreme in torch.aminmax(block))
    if math.isfinite(low) and math.isfinite(high):
        return _measure_finite(block, low, high, wanted, scratch)
    row = _measure_on_cpu(block[torch.isfinite(block)], wanted, scratch)
    row[5:8] = [x.sum().item() for x in (block.isnan(), block == math.inf, block == -math.inf)]
    return row


def _as_float(block: Tensor, scratch: Scratch) -> Tensor:
    """The block without gaps as float32 or float64, whichever holds its values."""
    if block.dtype in (torch.float32, torch.float64):
        return block.contiguous()
    dtype = torch.float32 if block.dtype.is_floating_point else torch.float64
    return scratch.take("float", dtype, block.numel()).copy_(block)


def _measure_finite(block: Tensor, low: float, high: float, wanted: frozenset[str], scratch: Scratch) -> list[float]:
    count = block.numel()
    mean = m2 = abs_sum = zeros = 0.0
    if "zeros" in wanted and low <= 0 <= high:
        # Into a float of its own type is the only comparison that torch vectorizes.
        zeros = torch.eq(block, 0, out=scratch.take("is_zero", block.dtype, count)).sum().item()
    if wanted & SUMS:
        wide = scratch.take("wide", torch.float64, count).copy_(block)
        total = wide.sum().item()
        mean = total / count
        if "m2" in wanted:
            squares = torch.dot(wide, wide).item()
            m2 = squares - total * mean
            if m2 < CANCELLATION * squares:
                wide.sub_(mean)
                m2 = max(0.0, torch.dot(wide, wide).item() - wide.sum().item() ** 2 / count)
                wide.add_(mean)
        if "abs_sum" in wanted:
            one_signed = low >= 0 or high <= 0
            abs_sum = abs(total) if one_signed else wide.abs_().sum().item()
    return _row(count, mean, m2, abs_sum, zeros, low, high)


def measure_without_waiting(block: Tensor, wanted: frozenset[str]) -> Tensor:
    """The row of a real tensor of any shape, by plain tensor operations of which the host reads nothing back.

    It serves accelerators, where reading back would make the host wait, and compiled graphs, which it would break.
    """
    if not block.numel():
        return torch.tensor(EMPTY, dtype=torch.float64, device=block.device)
    if not block.dtype.is_floating_point:
        block = block.double()
    elif block.dtype is not torch.float64:
        block = block.float()
    wide = torch.float64
    finite = block.isfinite()
    count = finite.sum(dtype=wide)
    clean = block.where(finite, 0)
    mean = m2 = abs_sum = zeros = torch.zeros((), dtype=wide, device=block.device)
    if wanted & {"mean", "m2"}:
        mean = clean.sum(dtype=wide) / count.clamp(min=1)
    if "m2" in wanted:
        # The differences are from the mean as the block's own type has it; the second term mends what that lost.
        away = (block - mean.to(block.dtype)).where(finite, 0)
        squares = torch.linalg.vector_norm(away, dtype=wide).square()
        m2 = squares - away.sum(dtype=wide).square() / count.clamp(min=1)
    if "abs_sum" in wanted:
        abs_sum = clean.abs().sum(dtype=wide)
    if "zeros" in wanted:
        zeros = (block == 0).sum(dtype=wide)
    nan = block.isnan().sum(dtype=wide)
    posinf = (block == math.inf).sum(dtype=wide)
    neginf = (block == -math.inf).sum(dtype=wide)
    low = block.where(finite, math.inf).amin().to(wide)
    high = block.where(finite, -math.inf).amax().to(wide)
    return torch.stack([count, mean, m2.clamp(min=0), abs_sum, zeros, nan, posinf, neginf, low, high])
