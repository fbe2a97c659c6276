"""Tiles of a picture: their size, and how they are put together."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hookboard.images.picture import MARGIN, PAPER, Pixels

TILE_GAP = 2
"""Pixels between two tiles."""


def shrink(maps: Tensor, size: int) -> Tensor:
    """Shrink maps of shape (n, channels, height, width) to at most `size` pixels a side, by averaging over areas."""
    height, width = maps.shape[-2:]
    factor = max(height, width) / size
    if factor <= 1:
        return maps
    to = (max(1, round(height / factor)), max(1, round(width / factor)))
    return torch.nn.functional.interpolate(maps, size=to, mode="area")


def enlarge(pixels: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """Repeat pixels of shape (n, height, width, ...) as often as fits into `size` a side; larger ones stay as is."""
    times = max(1, size // max(pixels.shape[1:3]))
    return pixels.repeat(times, axis=1).repeat(times, axis=2)


def grid(tiles: Pixels, columns: int) -> Pixels:
    """Arrange tiles of shape (n, height, width) or (n, height, width, 3) in rows and columns, with white gaps.

    torchvision's `make_grid` takes 6 to 20 times as long, and occupies torch's threads.
    """
    count, height, width, *colours = tiles.shape
    rows, (high, wide) = -(-count // columns), (height + TILE_GAP, width + TILE_GAP)
    framed = np.full((rows * columns, high, wide, *colours), PAPER, np.uint8)
    framed[:count, :height, :width] = tiles
    in_rows: Pixels = framed.reshape(rows, columns, high, wide, *colours).swapaxes(1, 2)
    return in_rows.reshape(rows * high, columns * wide, *colours)


def joined(parts: Sequence[Pixels], axis: int) -> Pixels:
    """Put pictures below each other (axis 0) or side by side (axis 1), with a margin between them."""
    most = max(part.shape[1 - axis] for part in parts)
    padded = []
    for k, part in enumerate(parts):
        blank = [(0, 0)] * part.ndim
        blank[axis], blank[1 - axis] = (0 if k == 0 else MARGIN, 0), (0, most - part.shape[1 - axis])
        padded.append(np.pad(part, blank, constant_values=PAPER))
    return np.concatenate(padded, axis)
