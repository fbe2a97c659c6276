"""`measure` turns a tensor into its row; `measure_channels` gives a row for each of its channels too."""

import math

import numpy as np
import torch
from torch import Tensor, nn

from hookboard.measure import accelerator, cpu, device, native
from hookboard.measure.merge import merge
from hookboard.measure.row import EMPTY, WIDTH, Row, every_of, has_channels, sample_of
from hookboard.measure.statistics import Plan
from hookboard.measure.values import Values, unscaled, values_of


def measure(
    tensor: Tensor,
    plan: Plan,
    *,
    counts: Tensor | None = None,
    moments_only: bool = False,
    scale: Tensor | None = None,
    dim: int | None = None,
) -> Row:
    """Measure a tensor. Any number of threads may do so at once.

    Args:
        tensor: detached; of any shape, dtype, layout, subclass and device.
        plan: what to measure.
        counts: the bins of its values are added to this, shape (BINS,), int64, contiguous, on the tensor's device.
        moments_only: leave out `counts` and all that is not moments, which is then NaN. An empty tensor is always
            measured like this.
        scale: what is measured is the tensor divided by this, shape (), in float32 at least.
        dim: the dimension of its channels, for what follows the moments; None if it has none.

    Returns:
        `plan.width` numbers: the columns of `FIELDS`, followed by those of `plan.more`. Floats on the CPU;
        elsewhere a float64 tensor on the device, which the host has not waited for: shape (plan.width,), or
        (n, plan.width), rows of parts of the tensor that `merge_rows` makes its row. Only sparse tensors with
        duplicates and subclasses that wrap other tensors make it wait.

    Raises:
        TypeError: the tensor has no values, or does not let them be read; the message says why.
        Exception: any error of a user's statistic. Then `counts` is unchanged.

    Example:
        >>> from hookboard.measure import FIELDS, plan
        >>> row = measure(torch.tensor([1.0, 3.0, float("nan")]), plan(["mean", "nan_count"]))
        >>> row[FIELDS.index("mean")], row[FIELDS.index("nan")]
        (2.0, 1.0)
    """
    if scale is not None and (plan.more or not accelerator.can_divide(tensor, scale)):
        tensor, scale = unscaled(tensor, scale), None
    row: Row | None = None
    form = native.form_of(tensor) if scale is None else None
    if form is not None:
        counts_now = None if moments_only or plan.more else counts
        row, _ = native.read(tensor, form, with_abs_mean="abs_mean" in plan.wanted, counts=counts_now)
        counts = counts if counts_now is None else None
        if row is not None and not plan.more:
            return row
    values = values_of(tensor)
    moments_only = moments_only or not (values.numbers.numel() or values.zeros)
    if row is None and values.numbers.is_cpu and not accelerator.can_read(values.numbers):
        row = cpu.row_of(values, plan.wanted)
    if row is None:
        return row_on_device(tensor, values, plan, counts, moments_only, scale, dim)
    return _completed(row, tensor, values, plan, counts, moments_only, dim)


def row_on_device(
    tensor: Tensor,
    values: Values,
    plan: Plan,
    counts: Tensor | None,
    moments_only: bool,
    scale: Tensor | None = None,
    dim: int | None = None,
) -> Row:
    """`measure` for a tensor that is not on the CPU; right for one that is, but slower."""
    # A user's statistic may raise, and then nothing may have been counted.
    counts_now = None if moments_only or plan.more else counts
    parts = device.parts_of(values, plan.wanted, counts_now, scale)
    if parts is not None and not plan.more:
        return parts
    if scale is not None:
        tensor, values = unscaled(tensor, scale), Values(unscaled(values.numbers, scale))
    row = device.row_of(values, plan.wanted) if parts is None else one_row(parts)
    return _completed(row, tensor, values, plan, counts, moments_only, dim)


def one_row(parts: Tensor) -> Tensor:
    """Merge some rows of one tensor into a single row, shape (WIDTH,), on their device."""
    if len(parts) <= accelerator.MOST_PROGRAMS:
        row = accelerator.merged(parts)
        if row is not None:
            return row[0]
    return merge(parts, torch.zeros(len(parts), dtype=torch.long, device=parts.device), 1)[0]


def _completed(
    row: Row,
    tensor: Tensor,
    values: Values,
    plan: Plan,
    counts: Tensor | None,
    moments_only: bool,
    dim: int | None,
) -> Row:
    """Return a row of moments with the columns of `plan.more`, and add the bins of the values to `counts`.

    Args:
        row: the moments: floats if the values are on the CPU, else a tensor.
        tensor: as in `measure`.
        values: the values of the tensor.
        plan: what to measure.
        counts: the bins are added to this; None for no bins.
        moments_only: leave `counts` alone, and fill all that is not moments with NaN.
        dim: the dimension of its channels; None if it has none.
    """
    if plan.more:
        moments = torch.as_tensor(row, dtype=torch.float64, device=values.numbers.device)
        numbers = moments.new_full((plan.width - WIDTH,), math.nan)
        if not moments_only:
            numbers = torch.cat([columns.measure(tensor, values, moments, dim) for columns in plan.more])
        row = row + numbers.tolist() if isinstance(row, list) else torch.cat([row, numbers])
    if counts is not None and not moments_only:
        (cpu if isinstance(row, list) else device).count_into(counts, values)
    return row


ChannelRows = np.ndarray | Tensor
"""Shape (channels, WIDTH), float64: an array on the CPU; elsewhere a tensor on the device. Of a wide tensor every k-th
channel has a row, see `every_of`."""


def measure_channels(
    tensor: Tensor,
    dim: int,
    plan: Plan,
    *,
    counts: Tensor | None = None,
    moments_only: bool = False,
    scale: Tensor | None = None,
) -> tuple[Row, ChannelRows | None]:
    """Measure a tensor like `measure`, and each of its channels; of a wide one every k-th, see `every_of`.

    Args:
        tensor: detached; of any shape, dtype, layout, subclass and device.
        dim: the dimension whose indices are the channels.
        plan: what to measure. What follows the moments is measured of the whole tensor only.
        counts: as in `measure`, of the whole tensor.
        moments_only: as in `measure`.
        scale: as in `measure`.

    Returns:
        What `measure` returns; and the rows of the channels, which the host has not waited for either. They are None if
        the tensor has no such dimension, and for subclasses, sparse, nested, complex and quantized tensors.

    Raises:
        TypeError: as in `measure`.
        Exception: any error of a user's statistic. Then `counts` is unchanged.

    Example:
        >>> from hookboard.measure import FIELDS, plan
        >>> row, channels = measure_channels(torch.tensor([[1.0, 5.0], [3.0, 5.0]]), 1, plan("mean"))
        >>> row[FIELDS.index("mean")], channels[:, FIELDS.index("mean")]
        (3.5, array([2., 5.]))
    """
    if scale is not None and (plan.more or not accelerator.can_divide(tensor, scale)):
        tensor, scale = unscaled(tensor, scale), None
    if not (_is_regular(tensor) and has_channels(tensor, dim)):
        return measure(tensor, plan, counts=counts, moments_only=moments_only, scale=scale), None
    dim %= tensor.dim()
    if every_of(tensor.shape[dim]) > 1:
        whole = measure(tensor, plan, counts=counts, moments_only=moments_only, scale=scale, dim=dim)
        return whole, _rows_of_sample(tensor, dim, plan.wanted, scale)
    form = None if scale is not None else native.form_of(tensor, dim)
    moments_only = moments_only or not tensor.numel()
    with_abs_mean = "abs_mean" in plan.wanted
    at_once = None if moments_only or plan.more else counts
    row: Row | None
    channels: ChannelRows | None
    if form is not None:
        row, channels = native.read(tensor, form, with_abs_mean=with_abs_mean, counts=at_once)
        counts = counts if at_once is None else None
    else:
        values_of(tensor)  # raises if its memory has been freed
        row = channels = accelerator.rows_of(tensor, dim, with_abs_mean=with_abs_mean, counts=at_once, scale=scale)
    if row is not None and not plan.more:
        return row, channels
    if row is None:
        tensor = tensor if scale is None else unscaled(tensor, scale)
        row, channels = _rows(tensor.resolve_neg(), dim, plan.wanted)
    elif isinstance(row, Tensor):
        row = one_row(row)
    values = values_of(tensor)
    return _completed(row, tensor, values, plan, counts, moments_only, dim), channels


def _rows_of_sample(tensor: Tensor, dim: int, wanted: frozenset[str], scale: Tensor | None) -> ChannelRows:
    """Return the rows of every k-th channel of a wide tensor that `measure` has read."""
    sample = sample_of(tensor, dim)
    rows = accelerator.rows_of(sample, dim, with_abs_mean="abs_mean" in wanted, scale=scale)
    if rows is not None:
        return rows
    sample = sample if scale is None else unscaled(sample, scale)
    return _rows(sample.resolve_neg(), dim, wanted)[1]


def _rows(tensor: Tensor, dim: int, wanted: frozenset[str]) -> tuple[Row, ChannelRows]:
    """Return the row of the tensor and those of its channels, whatever its memory looks like."""
    if tensor.is_cpu:
        copy = (tensor.float() if tensor.dtype in cpu.EXACT_AS_FLOAT32 else tensor.double()).contiguous()
        form = native.form_of(copy, dim)
        if form is not None:
            row, rows = native.read(copy, form, with_abs_mean="abs_mean" in wanted)
            if row is not None and rows is not None:
                return row, rows
    channels = rows_of_channels(tensor, dim, wanted)
    owner = torch.zeros(len(channels), dtype=torch.long, device=channels.device)
    whole = merge(channels, owner, 1)[0]
    return (whole.tolist(), channels.numpy()) if whole.is_cpu else (whole, channels)


def rows_of_channels(tensor: Tensor, dim: int, wanted: frozenset[str]) -> Tensor:
    """Return the row of each channel by torch's operations, on any device, shape (channels, WIDTH), float64.

    Args:
        tensor: plain, dense and real.
        dim: the dimension of the channels.
        wanted: the columns to fill.
    """
    if not tensor.numel():
        return torch.tensor(EMPTY, dtype=torch.float64, device=tensor.device).repeat(tensor.shape[dim], 1)
    if tensor.numel() > device.BLOCK and tensor.dim() > 1:
        along = max((d for d in range(tensor.dim()) if d != dim), key=tensor.size)
        if tensor.shape[along] > 1:
            halves = [rows_of_channels(half, dim, wanted) for half in tensor.tensor_split(2, along)]
            owner = torch.arange(tensor.shape[dim], device=tensor.device).repeat(2)
            return merge(torch.cat(halves), owner, tensor.shape[dim])
    return device.rows_of_block(tensor, dim, wanted)


def _is_regular(tensor: Tensor) -> bool:
    kind = type(tensor)
    return (
        (kind is Tensor or kind is nn.Parameter)
        and tensor.layout is torch.strided
        and not (tensor.is_nested or tensor.is_complex() or tensor.is_quantized)
    )
