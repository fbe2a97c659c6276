"""`measure` reduces a tensor to its row; `measure_channels` returns a row for each of its channels too."""

import math

import numpy as np
import torch
from torch import Tensor, nn

from hookboard.measure import cpu, device, native
from hookboard.measure.merge import merge
from hookboard.measure.row import WIDTH, Row, channel_stride, has_channels, sample_of
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
        counts: the bins of its values are added to this, shape (BINS,), int64, contiguous, on the tensor's device. A
            kernel of an accelerator leaves out those of NaN and infinities, which are in no histogram.
        moments_only: leave `counts` alone, and fill the columns after the moments with NaN. An empty tensor is always
            measured like this.
        scale: the tensor is divided by this first, shape (), in float32 at least; None to measure it as it is.
        dim: the dimension of its channels, for the columns after the moments; None if it has none.

    Returns:
        The columns of `FIELDS`, followed by those of `plan.more`. For a tensor on the CPU a list of `plan.width`
        floats; otherwise a float64 tensor on its device, shape (plan.width,). The host waits for the device only for
        sparse tensors with duplicates and for subclasses that wrap other tensors.

    Raises:
        TypeError: the tensor has no values, or does not let them be read; the message says why.
        Exception: any error of a user's statistic. Then `counts` is unchanged.

    Examples:
        >>> from hookboard.measure import FIELDS, plan
        >>> row = measure(torch.tensor([1.0, 3.0, float("nan")]), plan(["mean", "nan_count"]))
        >>> row[FIELDS.index("mean")], row[FIELDS.index("nan")]
        (2.0, 1.0)
    """
    tensor = tensor if scale is None else unscaled(tensor, scale)
    # A user's statistic may raise, and then nothing may have been counted.
    counts_now = None if moments_only or plan.more else counts
    row: Row | None = None
    form = native.form_of(tensor)
    if form is not None:
        row, _ = native.read(tensor, form, with_abs_mean="abs_mean" in plan.wanted, counts=counts_now)
        counts = counts if counts_now is None else None
        if row is not None and not plan.more:
            return row
    values = values_of(tensor)
    moments_only = moments_only or not (values.numbers.numel() or values.zeros)
    if row is None and values.numbers.is_cpu:
        row = cpu.row_of(values, plan.wanted)
    if row is None:
        return row_on_device(tensor, values, plan, counts, moments_only, dim)
    return _completed(row, tensor, values, plan, counts, moments_only, dim)


def row_on_device(
    tensor: Tensor, values: Values, plan: Plan, counts: Tensor | None, moments_only: bool, dim: int | None = None
) -> Row:
    """Do what `measure` does, for a tensor on an accelerator; it works on the CPU too, but is slower there."""
    return _completed(device.row_of(values, plan.wanted), tensor, values, plan, counts, moments_only, dim)


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
"""The row of each channel, shape (channels, WIDTH), float64: an array if the tensor was on the CPU, otherwise a tensor
on its device. Of a tensor with very many channels every k-th has a row, see `channel_stride`."""


def measure_channels(
    tensor: Tensor,
    dim: int,
    plan: Plan,
    *,
    counts: Tensor | None = None,
    moments_only: bool = False,
    scale: Tensor | None = None,
) -> tuple[Row, ChannelRows | None]:
    """Measure a tensor like `measure`, and each of its channels (of very many, every k-th, see `channel_stride`).

    Args:
        tensor: detached; of any shape, dtype, layout, subclass and device.
        dim: the dimension whose indices are the channels; may be negative.
        plan: what to measure. The rows of channels have moments only.
        counts: as in `measure`.
        moments_only: as in `measure`.
        scale: as in `measure`.

    Returns:
        The row that `measure` returns, and the rows of the channels. The latter are None if the tensor has no such
        dimension, and for subclasses, sparse, nested, complex and quantized tensors.

    Raises:
        TypeError: as in `measure`.
        Exception: any error of a user's statistic. Then `counts` is unchanged.

    Examples:
        >>> from hookboard.measure import FIELDS, plan
        >>> row, channels = measure_channels(torch.tensor([[1.0, 5.0], [3.0, 5.0]]), 1, plan("mean"))
        >>> row[FIELDS.index("mean")], channels[:, FIELDS.index("mean")]
        (3.5, array([2., 5.]))
    """
    tensor = tensor if scale is None else unscaled(tensor, scale)
    if not (_is_regular(tensor) and has_channels(tensor, dim)):
        return measure(tensor, plan, counts=counts, moments_only=moments_only), None
    dim %= tensor.dim()
    if channel_stride(tensor.shape[dim]) > 1:
        whole = measure(tensor, plan, counts=counts, moments_only=moments_only, dim=dim)
        return whole, _rows(sample_of(tensor, dim).resolve_neg(), dim, plan.wanted)[1]
    form = native.form_of(tensor, dim)
    moments_only = moments_only or not tensor.numel()
    row: Row | None = None
    channels: ChannelRows | None = None
    if form is not None:
        at_once = None if moments_only or plan.more else counts
        row, channels = native.read(tensor, form, with_abs_mean="abs_mean" in plan.wanted, counts=at_once)
        counts = counts if at_once is None else None
        if row is not None and not plan.more:
            return row, channels
    values = values_of(tensor)  # raises if its memory has been freed
    if row is None:
        row, channels = _rows(tensor.resolve_neg(), dim, plan.wanted)
    return _completed(row, tensor, values, plan, counts, moments_only, dim), channels


def _rows(tensor: Tensor, dim: int, wanted: frozenset[str]) -> tuple[Row, ChannelRows]:
    """Return the row of a tensor, and the rows of its channels, shape (channels, WIDTH).

    Args:
        tensor: plain, dense and real, of any dtype and order in memory.
        dim: the dimension of the channels, not negative.
        wanted: the columns to fill.
    """
    if tensor.is_cpu:
        copy = (tensor.float() if tensor.dtype in cpu.EXACT_AS_FLOAT32 else tensor.double()).contiguous()
        form = native.form_of(copy, dim)
        if form is not None:
            row, of_channels = native.read(copy, form, with_abs_mean="abs_mean" in wanted)
            if row is not None and of_channels is not None:
                return row, of_channels
    rows = None if tensor.is_cpu else device.rows_by_kernel(tensor, dim, wanted)
    if rows is not None:
        return rows[0], rows[1:]
    channels = rows_of_channels(tensor, dim, wanted)
    owner = torch.zeros(len(channels), dtype=torch.long, device=channels.device)
    whole = merge(channels, owner, 1)[0]
    return (whole.tolist(), channels.numpy()) if whole.is_cpu else (whole, channels)


def rows_of_channels(tensor: Tensor, dim: int, wanted: frozenset[str]) -> Tensor:
    """Return the row of each channel by torch's operations, on any device, shape (channels, WIDTH), float64.

    Args:
        tensor: plain, dense and real.
        dim: the dimension of the channels, not negative.
        wanted: the columns to fill.
    """
    if not tensor.numel():
        return device.empty_rows(tensor.shape[dim], tensor.device)
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
