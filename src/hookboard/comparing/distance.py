"""How far two tensors are apart, in numbers."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hookboard.base.ranks import whole

CHUNK = {"cpu": 1 << 16}
"""Elements that are compared at a time, in float64, by type of device: few enough for the caches of a CPU."""

CHUNK_ELSEWHERE = 1 << 22
"""The same for other devices."""


@dataclass(frozen=True)
class Distance:
    """How far a tensor is from a reference."""

    # Norm of the difference over that of the reference; infinite if a value that is not finite differs, or if only the
    # reference is all 0. For whole numbers the share of elements that differ.
    relative: float
    cosine: float  # of the angle between them; NaN if one is all 0
    index: tuple[int, ...]  # where the largest difference is; () for a single number
    left: float  # the value of the reference there; NaN if the tensors are the same
    right: float  # the other value there; NaN likewise


BROKEN = Distance(math.inf, math.nan, (), math.nan, math.nan)
"""The distance of a tensor that is missing or has another shape."""


def distance(left: Tensor, right: Tensor) -> Distance:
    """Measure how far `right` is from `left`, of the same shape; a DTensor only if all ranks do.

    >>> distance(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 4.5])).relative
    0.1
    """
    right = whole(right.detach()).to(left.device)
    if not left.numel() or (left.dtype == right.dtype and torch.equal(left, right)):
        return Distance(0.0, 1.0, (), math.nan, math.nan)
    floor = max(_smallest(left.dtype), _smallest(right.dtype))
    flat, other = left.detach().reshape(-1), right.reshape(-1)
    sums, unequal, worst, place = [0.0] * 4, 0, -1.0, 0
    is_whole = not left.is_floating_point() and not left.is_complex()
    size = CHUNK.get(left.device.type, CHUNK_ELSEWHERE)
    for start in range(0, len(flat), size):
        a, b = (_wide(tensor[start : start + size]) for tensor in (flat, other))
        gaps = torch.nn.functional.threshold((a - b).abs(), floor, 0.0)
        if not bool(torch.vdot(gaps, gaps).isfinite()):
            same = (a == b) | (a.isnan() & b.isnan())
            gaps = torch.where(same, 0.0, gaps).nan_to_num(nan=math.inf)
            a, b = (torch.where(a.isfinite() & b.isfinite(), x, 0.0) for x in (a, b))
        if is_whole:
            unequal += int(gaps.count_nonzero())
        largest = float(gaps.max())
        if largest > worst:
            worst, place = largest, start + int(gaps.argmax())
        products = (gaps, gaps), (a, a), (b, b), (a, b)
        sums = [total + float(torch.vdot(x, y).real) for total, (x, y) in zip(sums, products, strict=True)]
    of_difference, of_left, of_right, product = sums
    if is_whole:
        relative = unequal / len(flat)
    elif math.isinf(worst) or (of_difference and not of_left):
        relative = math.inf
    else:
        relative = math.sqrt(of_difference / of_left) if of_difference else 0.0
    cosine = product / math.sqrt(of_left * of_right) if of_left and of_right else math.nan
    index = tuple(map(int, np.unravel_index(place, left.shape))) if left.dim() else ()
    return Distance(relative, cosine, index, *(_number(tensor[place]) for tensor in (flat, other)))


def step_of(dtypes: set[torch.dtype]) -> float:
    """Return the rounding step of the coarsest of these types."""
    return max((torch.finfo(dtype).eps for dtype in dtypes), default=torch.finfo(torch.float32).eps)


def is_extreme(tensor: Tensor) -> Tensor:
    """Return where a floating tensor is infinite or has the largest number of its type, with which masks are filled.

    >>> is_extreme(torch.tensor([1.0, torch.finfo(torch.float32).min, torch.inf]))
    tensor([False,  True,  True])
    """
    return tensor.to(torch.float64).abs() >= torch.finfo(tensor.dtype).max


def converted(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the tensor in another type; the largest number of its type becomes the largest of the other."""
    if tensor.dtype == dtype or not (tensor.is_floating_point() and dtype.is_floating_point):
        return tensor.to(dtype)
    most = torch.finfo(dtype).max
    filled = is_extreme(tensor) & tensor.isfinite()
    return torch.where(filled, most * tensor.sign().to(dtype), tensor.to(dtype))


def _smallest(dtype: torch.dtype) -> float:
    """Return the size below which differences do not count, as numbers so small may be flushed to 0; 0 for integers."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return 0.0
    return 2.0**-23 if dtype == torch.float16 else torch.finfo(dtype).tiny


def _wide(tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    wide = tensor.to(torch.float64)
    if not tensor.is_floating_point() or _largest(wide) < torch.finfo(tensor.dtype).max:
        return wide
    # A mask of the largest number of its type says the same in another type as an infinite one.
    return torch.where(is_extreme(tensor), math.inf * wide.sign(), wide)


def _largest(tensor: Tensor) -> float:
    """Return the largest size of its elements; NaN if one is NaN."""
    low, high = torch.aminmax(tensor)
    return float(torch.maximum(-low, high))


def _number(tensor: Tensor) -> float:
    return float(tensor.abs() if tensor.is_complex() else tensor)
