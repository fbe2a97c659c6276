"""What a convolution has learned, as a picture: its kernels, and how they have changed."""

import numpy as np
import torch
from torch import Tensor

from hookboard.images import tiles
from hookboard.images.picture import Picture


def part_shown(weight: Tensor, *, kernels: int, channels: int) -> Tensor:
    """A copy of the part of a convolution's weight that a picture shows.

    Args:
        weight: shape (kernels, channels, width), (kernels, channels, height, width) or (kernels, channels, depth,
            height, width).
        kernels: how many kernels at most.
        channels: how many of their input channels at most.

    Returns:
        Shape (kernels, channels, height, width), float32; of volumes the middle slice.
    """
    part = weight.detach()[:kernels, :channels].float()
    if part.ndim == 3:
        part = part.unsqueeze(2)
    if part.ndim == 5:
        part = part[:, :, part.shape[2] // 2]
    return part.clone()


def kernel_picture(now: Tensor, before: Tensor, name: str, shape: torch.Size, *, size: int) -> Picture:
    """The kernels now, and beside them their change since `before`.

    Kernels of three channels that are all there are drawn in colour, as they meet an RGB picture: grey is 0. Of others
    each row is one kernel, each column one of its channels. Kernels of one pixel are drawn as one matrix.

    Args:
        now: shape (kernels, channels, height, width), as `part_shown` gives it.
        before: the same at the start of the fit.
        name: whose weight it is.
        shape: of the whole weight.
        size: pixels that a side of a kernel may take.
    """
    weights, change = now.cpu().numpy(), (now - before).cpu().numpy()
    is_colour = shape[1] == 3
    left, right = (_drawn(values, is_colour, size) for values in (weights, change))
    between = np.full((left.shape[0], 6 * tiles.GAP, 3), 255, np.uint8)
    pixels = np.concatenate([left, between, right], axis=1)
    kernels, channels = now.shape[:2]
    how = "in colour" if is_colour else "one in each row, its channels side by side"
    if now.shape[2:] == (1, 1) and not is_colour:
        how = "one in each row, a pixel for each channel"
    part = "" if (kernels, channels) == tuple(shape[:2]) else f" (the first {kernels} kernels, {channels} channels)"
    caption = (
        f"{name}: {shape[0]} kernels of {'x'.join(map(str, shape[1:]))}{part}, {how}; left: now, within "
        f"±{_most(weights):.3g}; right: change since the fit started, within ±{_most(change):.3g}; grey is 0"
    )
    if not np.isfinite(weights).all():
        caption += "; cyan: NaN or infinite"
    return Picture(pixels, caption)


def _most(values: np.ndarray) -> float:
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))


def _drawn(values: np.ndarray, is_colour: bool, size: int) -> np.ndarray:
    """RGB pixels, grey where the value is 0."""
    finite = np.isfinite(values)
    scaled = 0.5 + 0.5 * np.where(finite, values, 0) / (_most(values) or 1.0)
    grey = np.rint(scaled * 255).astype(np.uint8)
    if is_colour:
        side = int(np.ceil(np.sqrt(len(grey))))
        blank = np.full((side * int(np.ceil(len(grey) / side)), *grey.shape[1:]), 255, np.uint8)
        blank[: len(grey)] = grey
        big = tiles.enlarge(blank, size)
        return tiles.grid(big.transpose(0, 2, 3, 1).reshape(-1, side, *big.shape[2:], 3))
    if values.shape[2:] == (1, 1):
        grey, finite = (pixels.reshape(1, 1, *pixels.shape[:2]) for pixels in (grey, finite))
        size *= 4
    colour = np.where(finite[..., None], grey[..., None], np.array([0, 200, 220], np.uint8)).astype(np.uint8)
    big = tiles.enlarge(colour.transpose(4, 0, 1, 2, 3), size).transpose(1, 2, 3, 4, 0)
    return tiles.grid(big)
