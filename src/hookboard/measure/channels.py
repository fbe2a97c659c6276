"""`measure_channels`: a row for each channel of a tensor, and the tensor's own row as their merge."""

import numpy as np
import torch
from torch import Tensor, nn

from hookboard.measure import accelerator, cpu, device, native
from hookboard.measure.door import measure, measure_rest, one_row
from hookboard.measure.merge import merge
from hookboard.measure.row import EMPTY, Row
from hookboard.measure.sampling import every_of, sample_of
from hookboard.measure.statistics import Plan
from hookboard.measure.values import unscaled, values_of

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
        plan: what to measure. What stands behind the moments is measured of the whole tensor only.
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
    if not (_is_regular(tensor) and _has_channels(tensor, dim)):
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
        row = channels = _rows_by_kernel(tensor, dim, with_abs_mean, at_once, scale)
    if row is not None and not plan.more:
        return row, channels
    if row is None:
        tensor = tensor if scale is None else unscaled(tensor, scale)
        row, channels = _rows(tensor.resolve_neg(), dim, plan.wanted)
    elif isinstance(row, Tensor):
        row = one_row(row)
    values = values_of(tensor)
    return measure_rest(row, tensor, values, plan, counts, moments_only, dim), channels


def form_of(tensor: Tensor, dim: int | None) -> native.Form | None:
    """How the compiled kernel reads a tensor and its channels; None if it does not.

    It takes plain floats on the CPU, with no more channels than get a row each.

    Args:
        tensor: the tensor; there may be gaps between the parts of its first dimension.
        dim: the dimension of its channels; None for no channels.
    """
    if not native.is_plain(tensor):
        return None
    if dim is not None:
        dim = dim % tensor.dim() if _has_channels(tensor, dim) else None
    if dim is not None and every_of(tensor.shape[dim]) > 1:
        return None
    return native.form_of(tensor, dim, with_gaps=True)


def measure_like(
    tensor: Tensor, form: native.Form, plan: Plan, counts: Tensor | None = None, minus: Tensor | None = None
) -> tuple[Row, ChannelRows | None] | None:
    """What `measure_channels` returns for a tensor that is like one before; it takes a fraction of the time.

    Args:
        tensor: `is_like` must hold for it and the form.
        form: see `form_of`.
        plan: what to measure; nothing may stand behind the moments.
        counts: as in `measure`.
        minus: is subtracted first, in float32 at least; it must have passed `can_subtract`. None for nothing.

    Returns:
        None for float64 values whose squares leave its range. Then only the bins were counted.
    """
    row, channels = native.read(tensor, form, with_abs_mean="abs_mean" in plan.wanted, counts=counts, minus=minus)
    return None if row is None else (row, channels)


def _rows_by_kernel(
    tensor: Tensor, dim: int, with_abs_mean: bool, counts: Tensor | None, scale: Tensor | None
) -> Tensor | None:
    """The rows of the channels by the Triton kernel; None if it cannot be used."""
    if not accelerator.can_read(tensor):
        return None
    return accelerator.rows_of(tensor, dim, with_abs_mean=with_abs_mean, counts=counts, scale=scale)


def _rows_of_sample(tensor: Tensor, dim: int, wanted: frozenset[str], scale: Tensor | None) -> ChannelRows:
    """The rows of every k-th channel of a wide tensor that `measure` has read."""
    sample = sample_of(tensor, dim)
    rows = _rows_by_kernel(sample, dim, "abs_mean" in wanted, None, scale)
    if rows is not None:
        return rows
    sample = sample if scale is None else unscaled(sample, scale)
    return _rows(sample.resolve_neg(), dim, wanted)[1]


def _rows(tensor: Tensor, dim: int, wanted: frozenset[str]) -> tuple[Row, ChannelRows]:
    """The row of the tensor and those of its channels, whatever its memory looks like."""
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
    """The row of each channel by torch's operations, on any device, shape (channels, WIDTH), float64.

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


def _has_channels(tensor: Tensor, dim: int) -> bool:
    return -tensor.dim() <= dim < tensor.dim() and tensor.shape[dim] > 0
