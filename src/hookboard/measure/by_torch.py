"""Measures values by torch's operations, where no kernel reads them. The host waits for no device."""

import math

import torch
from torch import Tensor

from hookboard.measure.histogram import BINS, as_single, bins_of
from hookboard.measure.row import EMPTY, Moments, channel_stride, merge
from hookboard.measure.values import values_of

BLOCK = 1 << 21
"""The number of values measured at once, which bounds the memory of temporaries to some 80 MB."""


def rows_of(tensor: Tensor, dim: int | None) -> Tensor:
    """Return the row of a dense real tensor, and then those of its channels along `dim`, see `channel_stride`.

    Shape (1 + rows of channels, WIDTH), float64, on the tensor's device.
    """
    if dim is None:
        return _rows(tensor.reshape(1, -1), 0)
    each = _rows(tensor, dim)
    whole = each
    while len(whole) > 1:  # halves that lie side by side are merged until one is left
        odd = whole[len(whole) // 2 * 2 :]
        whole = torch.cat([merge(whole[0 : len(whole) - len(odd) : 2], whole[1::2]), odd])
    return torch.cat([whole, each[:: channel_stride(len(each))]])


def moments_of(tensor: Tensor) -> Moments:
    """Return the moments of one detached tensor, `abs_mean` too.

    Raises:
        TypeError: the tensor has no values, or holds them in a way of its own; the message says why.

    Examples:
        >>> moments_of(torch.tensor([1.0, 3.0, float("nan")])).mean
        2.0
    """
    values = values_of(tensor)
    return Moments(*(rows_of(values, None)[0].tolist() if values.numel() else EMPTY))


def _rows(tensor: Tensor, dim: int) -> Tensor:
    """Return the row of each channel along a dimension, shape (channels, WIDTH), in float64 and two passes."""
    if tensor.numel() > BLOCK:
        along = max((d for d in range(tensor.dim()) if d != dim), key=tensor.size)
        if tensor.shape[along] > 1:
            first, second = tensor.tensor_split(2, along)
            return merge(_rows(first, dim), _rows(second, dim))
    values = tensor.movedim(dim, 0).reshape(tensor.shape[dim], -1).double()
    finite = values.isfinite()
    count = finite.sum(1, keepdim=True).double()
    at_least_one, clean = count.clamp(min=1), values.where(finite, 0)
    mean = clean.sum(1, keepdim=True) / at_least_one
    deviation = ((values - mean).where(finite, 0).square().sum(1, keepdim=True) / at_least_one).sqrt()
    abs_mean = clean.abs().sum(1, keepdim=True) / at_least_one
    kinds = (values == 0, values.isnan(), values == math.inf, values == -math.inf)
    counts = [found.sum(1, keepdim=True).double() for found in kinds]
    low = values.where(finite, math.inf).amin(1, keepdim=True)
    high = values.where(finite, -math.inf).amax(1, keepdim=True)
    return torch.cat([count, mean, deviation, abs_mean, *counts, low, high], 1)


def count_into(counts: Tensor, values: Tensor) -> None:
    """Add the bins of the values to `counts`, shape (BINS,), int64, on their device."""
    for block in values.flatten().split(BLOCK):
        bins = bins_of(as_single(block))
        # `bincount` would make the host wait; `index_add_` adds to one bin after the other, which took 13 to 33 times
        # as long on an H200. Counts are the same in any order, but torch refuses `histc` if all must be deterministic.
        if counts.is_cpu:
            counts += torch.bincount(bins, minlength=BINS)
        elif counts.is_cuda and not torch.are_deterministic_algorithms_enabled():
            counts += torch.histc(bins, BINS, 0, BINS)
        else:
            counts.index_add_(0, bins, counts.new_ones(1).expand(bins.numel()))
