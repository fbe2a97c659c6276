"""A picture that is ready to be logged, and what all pictures are drawn with: colours, tiles and captions."""

import functools
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

Pixels = npt.NDArray[np.uint8]

COLOURS = {
    0.0: "472c7a",
    0.125: "3b518b",
    0.25: "2c718e",
    0.375: "21908d",
    0.5: "27ad81",
    0.65: "5cc863",
    0.8: "aadc32",
    1.0: "fde725",
}
"""Position on the scale to colour, as in the tab (`board/static/map.js`): viridis without its darkest end.

Viridis (Nathaniel Smith, Stefan van der Walt; CC0) stays legible in print and to the colour-blind: its lightness rises.
"""

NOT_FINITE_COLOUR = "ff00b8"
"""Magenta, which no scale contains; as in the tab."""

LEVELS = 238
NOT_FINITE = LEVELS
INK = LEVELS + 1
PAPER = 255
"""Indices of the palette: values from 0 to LEVELS - 1, then NaN and infinities, then greys from ink to paper."""


def interpolated(colours: Mapping[float, str], number: int) -> Pixels:
    """Interpolate between colours by their positions on the scale; return RGB, shape (number, 3)."""
    channels = np.array([list(bytes.fromhex(code)) for code in colours.values()]).T
    at = np.linspace(0, 1, number)
    rounded: Pixels = np.rint([np.interp(at, list(colours), channel) for channel in channels]).T.astype(np.uint8)
    return rounded


def _palette(colours: Mapping[float, str]) -> Pixels:
    """Return RGB colours, shape (256, 3): LEVELS of the scale, the colour of NaN, then greys from ink to paper."""
    greys = np.repeat(np.linspace(30, 255, PAPER - INK + 1)[:, None], 3, axis=1)
    broken = [list(bytes.fromhex(NOT_FINITE_COLOUR))]
    palette: Pixels = np.rint(np.concatenate([interpolated(colours, LEVELS), broken, greys])).astype(np.uint8)
    return palette


HEAT = _palette(COLOURS)
GREY = _palette({0.0: "000000", 1.0: "ffffff"})


def indices(values: np.ndarray) -> Pixels:
    """Return the palette index of each value, clipped to [0, 1]; NOT_FINITE for NaN and infinities.

    >>> indices(np.array([0.0, 1.0, 7.0, np.nan])).tolist()
    [0, 237, 237, 238]
    """
    finite = np.isfinite(values)
    clipped = np.clip(np.where(finite, values, 0), 0, 1)
    return np.where(finite, np.rint(clipped * (LEVELS - 1)), NOT_FINITE).astype(np.uint8)


def rgb(values: np.ndarray) -> Pixels:
    """Return the colour in `HEAT` of each value, clipped to [0, 1], shape (..., 3), uint8; NaN and Inf are magenta."""
    return HEAT[indices(values)]


Normalize = Literal["map", "layer"] | tuple[float, float]
"""The range of values that the colours span: each map's own (`map`), that of all maps of the layer, or a fixed one."""

TILE_GAP = 2
"""Pixels between two tiles."""

CARD_WIDTH = 344
"""Width of a card of TensorBoard in pixels. It shrinks wider pictures, so that captions become illegible."""


def shrink(maps: Tensor, size: int) -> Tensor:
    """Shrink maps of shape (n, channels, height, width) to at most `size` pixels a side, by averaging over areas."""
    height, width = maps.shape[-2:]
    factor = max(height, width) / size
    if factor <= 1:
        return maps
    to = (max(1, round(height / factor)), max(1, round(width / factor)))
    return torch.nn.functional.interpolate(maps, size=to, mode="area")


def enlarge(pixels: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """Repeat pixels of shape (..., height, width) as often as fits into `size` a side; larger maps stay as they are."""
    times = max(1, size // max(pixels.shape[-2:]))
    return pixels.repeat(times, axis=-2).repeat(times, axis=-1)


def scaled(maps: np.ndarray, normalize: Normalize) -> tuple[np.ndarray, str]:
    """Scale maps of shape (n, channels, height, width) so that a range becomes [0, 1]; return maps and range in words.

    The range is that of each map, of all maps, or a fixed one, outside of which nothing is cut off here. Non-finite
    values become NaN and are ignored. Where a range is a single value, all become 0 if it is 0 (a dead channel),
    otherwise 0.5.
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
    """Arrange tiles in rows and columns of one picture, with white gaps between them.

    Args:
        tiles: shape (rows, columns, height, width) or (rows, columns, height, width, 3), uint8.

    Returns:
        Shape (height, width) or (height, width, 3).
    """
    rows, columns, height, width, *colours = tiles.shape
    framed: Pixels = np.full((rows, columns, height + TILE_GAP, width + TILE_GAP, *colours), PAPER, dtype=np.uint8)
    framed[:, :, :height, :width] = tiles
    order = (0, 2, 1, 3, *range(4, tiles.ndim))
    pixels: Pixels = framed.transpose(order).reshape(rows * (height + TILE_GAP), columns * (width + TILE_GAP), *colours)
    return pixels


def squares(tiles: Pixels) -> Pixels:
    """Arrange the tiles of each sample in a square, and as many squares side by side as fit on a card of TensorBoard.

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
    framed = np.pad(drawn, ((0, 0), (0, 2 * TILE_GAP), (0, 2 * TILE_GAP)), constant_values=PAPER)
    across = min(samples, max(1, CARD_WIDTH // framed.shape[2]))
    lines = math.ceil(samples / across)
    return grid(_filled(framed, lines * across).reshape(lines, across, *framed.shape[1:]))


def _filled(tiles: Pixels, count: int) -> Pixels:
    """Append blank tiles until there are `count`."""
    return np.concatenate([tiles, np.full((count - len(tiles), *tiles.shape[1:]), PAPER, np.uint8)])


FONT_SIZE = 12
LINE_HEIGHT = FONT_SIZE + 4
MARGIN = 4
SPACE = 4

PNG_COMPRESSION = 3
"""Level of zlib: a higher one costs more time than the saved bytes take to write."""


@dataclass(frozen=True)
class Picture:
    """Pixels and a caption that says what they show.

    Args:
        pixels: palette indices of shape (height, width), or RGB of shape (height, width, 3); uint8.
        caption: one sentence, drawn above the pixels.
        palette: the RGB colours of the indices, shape (256, 3).
        is_photo: True to encode as JPEG, with loss.
    """

    pixels: Pixels
    caption: str
    palette: Pixels = field(default_factory=lambda: HEAT, repr=False)
    is_photo: bool = False

    def image(self) -> Image.Image:
        """Return the pixels with the caption above them."""
        height, width = self.pixels.shape[:2]
        text = _text(self.caption, max(width, CARD_WIDTH))
        canvas = np.full((len(text) + height, text.shape[1], *self.pixels.shape[2:]), PAPER, np.uint8)
        canvas[: len(text)] = text if self.pixels.ndim == 2 else self.palette[text]
        canvas[len(text) :, :width] = self.pixels
        return self._drawn(canvas)

    def tiles(self) -> Image.Image:
        """Return the pixels without the caption and without the blank rows and columns at the end."""
        is_blank = self.pixels == PAPER if self.pixels.ndim == 2 else (self.pixels == PAPER).all(axis=2)
        rows, columns = (np.flatnonzero(~is_blank.all(axis=axis)) for axis in (1, 0))
        if not len(rows):
            return self._drawn(self.pixels)
        return self._drawn(np.ascontiguousarray(self.pixels[: rows[-1] + 1, : columns[-1] + 1]))

    def _drawn(self, pixels: Pixels) -> Image.Image:
        image = Image.fromarray(pixels)
        if pixels.ndim == 2:
            image.putpalette(self.palette.tobytes())
        return image

    def encode(self) -> tuple[bytes, int, int]:
        """Return the encoded image, its width and its height: JPEG for photographs, otherwise lossless PNG."""
        image, file = self.image(), io.BytesIO()
        if self.is_photo:
            image.save(file, "JPEG", quality=90)
        else:
            image.save(file, "PNG", compress_level=PNG_COMPRESSION)
        return file.getvalue(), image.width, image.height


def _text(caption: str, width: int) -> Pixels:
    """Draw a caption, wrapped to `width`, as palette indices of shape (height, width)."""
    lines: list[list[Pixels]] = [[]]
    for word in map(_word, caption.split()):
        taken = sum(part.shape[1] + SPACE for part in lines[-1])
        if lines[-1] and MARGIN + taken + word.shape[1] > width - MARGIN:
            lines.append([])
        lines[-1].append(word[:, : width - 2 * MARGIN])
    strip = np.full((len(lines) * LINE_HEIGHT + 2 * MARGIN, width), PAPER, np.uint8)
    for k, line in enumerate(lines):
        top, left = MARGIN + k * LINE_HEIGHT, MARGIN
        for word in line:
            strip[top : top + LINE_HEIGHT, left : left + word.shape[1]] = word
            left += word.shape[1] + SPACE
    return strip


@functools.lru_cache(maxsize=2048)
def _word(word: str) -> Pixels:
    """Draw one word as palette indices, shape (LINE_HEIGHT, width). Cached, because captions differ in few words."""
    strip = Image.new("L", (math.ceil(font().getlength(word)), LINE_HEIGHT), 255)
    ImageDraw.Draw(strip).text((0, 0), word, fill=0, font=font())
    grey = np.asarray(strip, dtype=float) / 255
    drawn: Pixels = np.rint(INK + grey * (PAPER - INK)).astype(np.uint8)
    return drawn


@functools.cache
def font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Return the font of captions and labels, at `FONT_SIZE`."""
    return ImageFont.load_default(FONT_SIZE)


def text_block(text: str, width: int) -> Pixels:
    """Draw a text, wrapped to `width`, without margins above and below; palette indices of shape (height, width)."""
    return _text(text, width)[MARGIN:-MARGIN]
