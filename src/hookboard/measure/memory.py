"""How a plain tensor lies in memory, for the kernels that read it there; what its device can do."""

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hookboard.measure.row import channel_stride

WHOLE, FIRST, RUNS, LAST = range(4)
"""How channels lie in memory, see `on_gpu`."""


Shape = tuple[int, int, int, int, int, int]
"""How a tensor lies in memory: its layout, one of these; `outer`, `channels` and `inner`, see `on_gpu.measure`; how far
apart the first values of two channels are, `inner` without gaps; `every`, see there, 0 if no channel has a row."""


def is_plain(tensor: Tensor) -> bool:
    """Return True for a tensor with memory of its own: no subclass, sparse, nested or quantized one."""
    kind = type(tensor)
    return (
        (kind is Tensor or kind is nn.Parameter)
        and tensor.layout is torch.strided
        and not (tensor.is_nested or tensor.is_quantized)
    )


@functools.lru_cache(maxsize=1 << 14)
def shape_in_memory(shape: torch.Size, stride: tuple[int, ...], dim: int | None) -> Shape | None:
    """Return how a tensor that is not empty lies in memory; None if it has gaps that the kernels cannot skip."""
    if dim is not None and (not -len(shape) <= dim < len(shape) or not shape[dim]):
        dim = None
    values, order = math.prod(shape), dense_order(shape, stride)
    if order is None:
        # They can skip gaps between the parts of the first dimension, as in `weight[::4]`, if no other has the
        # channels.
        inner = values // shape[0]
        has_gaps_between_parts_alone = stride[0] >= inner and dense_order(shape[1:], stride[1:]) == [
            *range(len(shape) - 1)
        ]
        if dim not in (None, 0, -len(shape)) or not has_gaps_between_parts_alone:
            return None
        return FIRST, 1, shape[0], inner, stride[0], 0 if dim is None else channel_stride(shape[0])
    if dim is None:
        return WHOLE, 1, 1, values, values, 0
    place, sizes = order.index(dim % len(shape)), [shape[each] for each in order]
    outer, channels, inner = math.prod(sizes[:place]), sizes[place], math.prod(sizes[place + 1 :])
    every = channel_stride(channels)
    if inner == 1:
        return LAST, outer, channels, 1, 1, every
    return FIRST if outer == 1 else RUNS, outer, channels, inner, inner, every


def dense_order(shape: Sequence[int], stride: Sequence[int]) -> list[int] | None:
    """Return the dimensions in their order in memory, the one with stride 1 last; None if there are gaps.

    >>> tensor = torch.empty(2, 3, 4, 5, memory_format=torch.channels_last)
    >>> dense_order(tensor.shape, tensor.stride())
    [0, 2, 3, 1]
    """
    order = sorted(range(len(shape)), key=lambda dim: (stride[dim], shape[dim]), reverse=True)
    expected = 1
    for dim in reversed(order):
        if shape[dim] != 1:
            if stride[dim] != expected:
                return None
            expected *= shape[dim]
    return order


def can_subtract(minus: Tensor, values: Tensor) -> bool:
    """Return True if a kernel can read `minus` beside `values`: it lies in the same order, without gaps."""
    if not is_plain(minus) or minus.dtype is not values.dtype or minus.device != values.device or minus.is_neg():
        return False
    if minus.shape != values.shape or minus.stride()[1:] != values.stride()[1:]:
        return False
    # The values may have gaps between the parts of their first dimension; these then follow each other.
    is_dense = minus.stride() == values.stride() and dense_order(minus.shape, minus.stride()) is not None
    return is_dense or minus.is_contiguous()


DEVICES = {"cuda"}  # with Triton's kernel; tests add the CPU, where Triton's interpreter runs it

WITHOUT_FLOAT64 = frozenset({"mps"})  # which sums need: tensors there are copied to the CPU to be measured


@functools.cache
def processors(device: torch.device) -> int:
    """Return the number of multiprocessors of a device."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 128


def needs_host(device: torch.device) -> bool:
    """Return True if tensors of this device are measured on the CPU, because the device has no float64."""
    return device.type in WITHOUT_FLOAT64


def measuring_device(device: torch.device) -> torch.device:
    """Return the device on which tensors of a device are measured: itself, or the CPU if it has no float64.

    >>> measuring_device(torch.device("mps"))
    device(type='cpu')
    """
    return torch.device("cpu") if needs_host(device) else device
