"""Many small maps in one picture: scaling their size and values, and arranging them in a grid."""

import math
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hookboard.images.colour import PAPER, Pixels

Normalize = Literal["map", "layer"] | tuple[float, float]
"""The range of values that the colours span: that of each map, that of all maps of the layer, or a fixed one."""

GAP = 2
"""Pixels between two tiles."""

CARD = 344
"""The width of a card of TensorBoard, in pixels. It shrinks wider pictures, and their captions become unreadable."""


def shrink(maps: Tensor, size: int) -> Tensor:
    """Maps of shape (n, channels, height, width) with at most `size` pixels a side, by averaging over areas."""
    height, width = maps.shape[-2:]
    factor = max(height, width) / size
    if factor <= 1:
        return maps
    to = (max(1, round(height / factor)), max(1, round(width / factor)))
    return torch.nn.functional.interpolate(maps, size=to, mode="area")


def enlarge(pixels: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """Pixels of shape (..., height, width), repeated as often as fits into `size` pixels a side."""
    times = max(1, size // max(pixels.shape[-2:]))
    return pixels.repeat(times, axis=-2).repeat(times, axis=-1)


def scaled(maps: np.ndarray, normalize: Normalize) -> tuple[np.ndarray, str]:
    """Maps of shape (n, channels, height, width) with their values from 0 to 1, and the range in words.

    Non-finite values become NaN and do not count for the range. If all values of a map are equal, it is drawn as 0 if
    they are 0 (a dead channel), otherwise as 0.5.
    """
    finite = np.where(np.isfinite(maps), maps, np.nan)
    if normalize == "map":
        low, high = _range(finite, axis=(-2, -1))
        words = "each map's least to its greatest"
    elif normalize == "layer":
        low, high = _range(finite, axis=None)
        words = f"from {low.item():.3g} to {high.item():.3g}"
    else:
        low, high = (np.full((1,) * maps.ndim, bound) for bound in normalize)
        words = f"from {normalize[0]:g} to {normalize[1]:g}, cut off there"
    flat = np.where(low == 0, 0.0, 0.5)
    with np.errstate(invalid="ignore", divide="ignore"):
        values = np.where(high > low, (maps - low) / (high - low), flat)
    return np.where(np.isfinite(maps), values, np.nan), words


def _range(finite: np.ndarray, axis: tuple[int, ...] | None) -> tuple[np.ndarray, np.ndarray]:
    # Where a map has no finite value there is nothing to draw, and any range will do.
    nothing = np.isnan(finite).all(axis=axis, keepdims=True)
    low = np.where(np.isnan(finite), np.inf, finite).min(axis=axis, keepdims=True)
    high = np.where(np.isnan(finite), -np.inf, finite).max(axis=axis, keepdims=True)
    return np.where(nothing, 0.0, low), np.where(nothing, 1.0, high)


def grid(tiles: Pixels) -> Pixels:
    """Tiles in rows and columns as one picture, with white gaps between them.

    Args:
        tiles: shape (rows, columns, height, width) or (rows, columns, height, width, 3), uint8.

    Returns:
        Shape (height, width) or (height, width, 3).
    """
    rows, columns, height, width, *colours = tiles.shape
    framed: Pixels = np.full((rows, columns, height + GAP, width + GAP, *colours), PAPER, dtype=np.uint8)
    framed[:, :, :height, :width] = tiles
    order = (0, 2, 1, 3, *range(4, tiles.ndim))
    pixels: Pixels = framed.transpose(order).reshape(rows * (height + GAP), columns * (width + GAP), *colours)
    return pixels


def squares(tiles: Pixels) -> Pixels:
    """The tiles of each sample as a square, and as many squares side by side as fit into a card of TensorBoard.

    Args:
        tiles: shape (samples, tiles, height, width), uint8.

    Returns:
        Shape (height, width).
    """
    samples, count, *shape = tiles.shape
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    each = _filled(tiles.swapaxes(0, 1), rows * columns).swapaxes(0, 1)
    drawn = np.stack([grid(one.reshape(rows, columns, *shape)) for one in each])
    framed = np.pad(drawn, ((0, 0), (0, 2 * GAP), (0, 2 * GAP)), constant_values=PAPER)
    across = min(samples, max(1, CARD // framed.shape[2]))
    lines = math.ceil(samples / across)
    return grid(_filled(framed, lines * across).reshape(lines, across, *framed.shape[1:]))


def _filled(tiles: Pixels, count: int) -> Pixels:
    """The tiles and paper behind them, `count` in all."""
    return np.concatenate([tiles, np.full((count - len(tiles), *tiles.shape[1:]), PAPER, np.uint8)])
