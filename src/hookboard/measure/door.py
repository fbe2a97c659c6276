"""`measure`: turns a tensor into its row."""

import math

import torch
from torch import Tensor

from hookboard.measure import accelerator, cpu, device, native
from hookboard.measure.merge import merge
from hookboard.measure.row import WIDTH, Row
from hookboard.measure.statistics import Plan, measure_own
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
        dim: the dimension of its channels, for what stands behind the moments; None if it has none.

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
    form = native.form_of(tensor) if scale is None else None
    if form is not None:
        moments_only = moments_only or not tensor.numel()
        at_once = None if moments_only or plan.more else counts
        row, _ = native.read(tensor, form, with_abs_mean="abs_mean" in plan.wanted, counts=at_once)
        if row is not None:
            if plan.more:
                row += _more(tensor, None, row, plan, dim, moments_only)
                if counts is not None and not moments_only:
                    native.read(tensor, form, with_abs_mean=False, counts=counts)
            return row
        counts = counts if at_once is None else None
    values = values_of(tensor)
    moments_only = moments_only or not (values.numbers.numel() or values.zeros)
    if values.numbers.is_cpu and not accelerator.can_read(values.numbers):
        return row_on_cpu(tensor, values, plan, counts, moments_only, dim)
    return row_on_device(tensor, values, plan, counts, moments_only, scale, dim)


def row_on_cpu(
    tensor: Tensor, values: Values, plan: Plan, counts: Tensor | None, moments_only: bool, dim: int | None = None
) -> Row:
    """`measure` for a tensor on the CPU that the kernel does not read."""
    return measure_rest(cpu.row_of(values, plan.wanted), tensor, values, plan, counts, moments_only, dim)


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
    return measure_rest(row, tensor, values, plan, counts, moments_only, dim)


def one_row(parts: Tensor) -> Tensor:
    """The merged row of some rows of one tensor, shape (WIDTH,), on their device."""
    if len(parts) <= accelerator.MOST_PROGRAMS:
        row = accelerator.merged(parts)
        if row is not None:
            return row[0]
    return merge(parts, torch.zeros(len(parts), dtype=torch.long, device=parts.device), 1)[0]


def measure_rest(
    row: Row,
    tensor: Tensor,
    values: Values,
    plan: Plan,
    counts: Tensor | None,
    moments_only: bool,
    dim: int | None = None,
) -> Row:
    """What `measure` does when it has the moments.

    Args:
        row: the moments: floats if the values are on the CPU, else a tensor.
        tensor: given to `measure`, as the other arguments.
        values: what is in it.
        plan: what to measure.
        counts: the bins are added to this.
        moments_only: leave out `counts` and all that is not moments.
        dim: the dimension of its channels; None if it has none.

    Returns:
        The row with what stands behind the moments.
    """
    if isinstance(row, list):
        if plan.more:
            row += _more(tensor, values, row, plan, dim, moments_only)
        count_into = cpu.count_into
    else:
        if plan.more:
            nothing = row.new_full((plan.width - WIDTH,), math.nan)
            row = torch.cat([row, nothing if moments_only else _measured(tensor, values, row, plan, dim)])
        count_into = device.count_into
    if counts is not None and not moments_only:
        count_into(counts, values)
    return row


def _more(
    tensor: Tensor, values: Values | None, row: list[float], plan: Plan, dim: int | None, moments_only: bool
) -> list[float]:
    """What stands behind the moments of a tensor on the CPU."""
    if moments_only:
        return [math.nan] * (plan.width - WIDTH)
    moments = torch.tensor(row, dtype=torch.float64, device="cpu")
    numbers: list[float] = _measured(tensor, values, moments, plan, dim).tolist()
    return numbers


def _measured(tensor: Tensor, values: Values | None, row: Tensor, plan: Plan, dim: int | None) -> Tensor:
    """The same, shape (width_of(plan.more),), float64, on its device."""
    parts = []
    if plan.columns:
        values = values_of(tensor) if values is None else values
        parts = [columns.measure(tensor, values, row, dim) for columns in plan.columns]
    if plan.own:
        parts.append(measure_own(plan.own, tensor))
    return torch.cat(parts)
