"""Draws a convolution's kernels, and how they have changed."""

import math

import numpy as np
import torch
from torch import Tensor

from hookboard.images.colour_scale import ColourScale
from hookboard.images.picture import GREY, MARGIN, NOT_FINITE, Bar, Picture, Pixels, indices
from hookboard.images.tiles import enlarge, grid, joined


def selected_kernels(weight: Tensor, *, kernels: int, channels: int) -> Tensor:
    """Copy the part of a convolution's weight that a picture shows, (kernels, channels, height, width) in float32.

    Kernels of one or three channels take one tile each, so up to `kernels * channels` of them are selected. Of volumes
    it is the middle slice.
    """
    if weight.shape[1] in (1, 3):
        kernels, channels = kernels * channels, weight.shape[1]
    part = weight.detach()[:kernels, :channels].float()
    if part.ndim == 3:
        part = part.unsqueeze(2)
    if part.ndim == 5:
        part = part[:, :, part.shape[2] // 2]
    return part.clone()


def kernel_picture(now: Tensor, before: Tensor, name: str, shape: torch.Size, *, size: int) -> Picture:
    """Draw the kernels, and beside them their change since `before`, the start of the fit.

    Kernels of three channels are drawn in colour (red, green and blue; grey is 0), kernels of one channel as one tile
    each. For others each row is a kernel and each column a channel. They are
    enlarged to at most `size` pixels a side; larger ones are drawn as they are.
    """
    weights, change = now.cpu().numpy(), (now - before).cpu().numpy()
    is_colour = shape[1] == 3
    halves = [_drawn(values, is_colour, size) for values in (weights, change)]
    width = max(halves[0].shape[1], 300)  # room for the numbers of a bar
    kernels, channels = now.shape[:2]
    how = "in colour" if is_colour else "a tile each" if channels == 1 else "rows: kernels, columns: channels"
    part = "" if (kernels, channels) == tuple(shape[:2]) else f" (shown: {kernels}x{channels})"
    caption = (
        f"{name}: {'x'.join(map(str, shape))}{part}, {how}; left: now, ±{_most(weights):.3g}; right: change in this "
        f"fit, ±{_most(change):.3g}; grey: 0"
    )
    missing = int(np.sum(~np.isfinite(weights)))
    if missing:
        caption += f"; {missing} of the weights NaN or infinite{'' if is_colour else ': magenta'}"
    blank = [(0, 0), (0, width - halves[0].shape[1])]
    left = np.pad(halves[0], blank + [(0, 0)] * (halves[0].ndim - 2), constant_values=255)
    bars = (
        Bar(_around_zero(weights), "now", right=width - MARGIN, keys=((NOT_FINITE, "NaN"),) * bool(missing)),
        Bar(_around_zero(change), "change", left=width + MARGIN, right=2 * width),
    )
    return Picture(joined([left, halves[1]], axis=1), caption, GREY, bars=bars)


def _most(values: np.ndarray) -> float:
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))


def _around_zero(values: np.ndarray) -> ColourScale:
    most = _most(values) or 1.0
    return ColourScale(-most, most)


def _drawn(values: np.ndarray, is_colour: bool, size: int) -> Pixels:
    """Lay out kernels, divided by their largest magnitude, as RGB or indices of the grey palette; 0 is mid-grey."""
    shares = 0.5 + 0.5 * values / (_most(values) or 1.0)
    kernels, channels = shares.shape[:2]
    if is_colour:
        rgb = np.rint(np.nan_to_num(shares, nan=0.5, posinf=1, neginf=0) * 255).astype(np.uint8)
        return grid(enlarge(rgb.transpose(0, 2, 3, 1), size), math.ceil(math.sqrt(kernels)))
    tiles = enlarge(indices(shares.reshape(-1, *shares.shape[2:])), size)
    return grid(tiles, math.ceil(math.sqrt(kernels)) if channels == 1 else channels)
