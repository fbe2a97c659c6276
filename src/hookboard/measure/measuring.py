"""`measure` reduces a tensor to its row; `measure_channels` returns a row for each of its channels too."""

import math

import torch
from torch import Tensor

from hookboard.measure import by_torch, native
from hookboard.measure.memory import is_plain
from hookboard.measure.row import WIDTH, ChannelRows, Row, channel_stride, has_channels, sample_of
from hookboard.measure.statistics import Plan
from hookboard.measure.values import unscaled, values_of


def measure(
    tensor: Tensor,
    plan: Plan,
    *,
    counts: Tensor | None = None,
    moments_only: bool = False,
    scale: Tensor | None = None,
) -> Row:
    """Measure a tensor. Any number of threads may do so at once, with different `counts`.

    Args:
        tensor: detached; of any shape, dtype, layout, subclass and device.
        plan: what to measure.
        counts: the bins of its values are added to this, shape (BINS,), int64, contiguous, on the tensor's device. A
            kernel of an accelerator leaves out those of NaN and infinities, which are in no histogram.
        moments_only: leave `counts` alone, and fill the columns after the moments with NaN. An empty tensor is always
            measured like this.
        scale: the tensor is divided by this first, shape (), in float32 at least; None to measure it as it is.

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
    return measure_channels(tensor, None, plan, counts=counts, moments_only=moments_only, scale=scale)[0]


def measure_channels(
    tensor: Tensor,
    dim: int | None,
    plan: Plan,
    *,
    counts: Tensor | None = None,
    moments_only: bool = False,
    scale: Tensor | None = None,
) -> tuple[Row, ChannelRows | None]:
    """Measure a tensor like `measure`, and each of its channels (of very many, every k-th, see `channel_stride`).

    Args:
        tensor: detached; of any shape, dtype, layout, subclass and device.
        dim: the dimension whose indices are the channels; may be negative. None for no channels.
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
    if dim is not None:
        dim = dim % tensor.dim() if is_plain(tensor) and not tensor.is_complex() and has_channels(tensor, dim) else None
    is_sampled = dim is not None and channel_stride(tensor.shape[dim]) > 1
    # A user's statistic may raise, and then nothing may have been counted.
    counts_now = None if moments_only or plan.more else counts
    each = None if is_sampled else dim
    found = native.measure(tensor, each, with_abs_mean="abs_mean" in plan.wanted, counts=counts_now)
    row: Row | None
    channels: ChannelRows | None
    row, channels = (None, None) if found is None else found
    if row is not None and not (plan.more or is_sampled):
        return row, channels
    # The kernel has counted the bins, also where it has found no row.
    if found is not None and counts_now is not None:
        counts = None
    values = values_of(tensor)  # raises if its memory has been freed
    if row is None and each is not None:
        row, channels = by_torch.rows_of(tensor.resolve_neg(), each, plan.wanted)
    elif row is None:
        row = by_torch.row_of(values, plan.wanted)
    if is_sampled and dim is not None:
        _, channels = by_torch.rows_of(sample_of(tensor, dim).resolve_neg(), dim, plan.wanted)
    moments_only = moments_only or not (values.numbers.numel() or values.zeros)
    if plan.more:
        moments = torch.as_tensor(row, dtype=torch.float64, device=values.numbers.device)
        more = [columns.measure(tensor, values, moments, dim) for columns in plan.more] if not moments_only else []
        row = torch.cat([moments, *(more or [moments.new_full((plan.width - WIDTH,), math.nan)])])
    if counts is not None and not moments_only:
        by_torch.count_into(counts, values)
    return row.tolist() if isinstance(row, Tensor) and row.is_cpu else row, channels
