"""A picture that is ready to be logged: its pixels, with a caption above and colour bars below.

Pillow draws it, not matplotlib, which takes 13 to 24 times as long (`python benchmarks/pictures.py`).
"""

import functools
import io
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from hookboard.images.colour_scale import ColourScale

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

OTHER_COLOURS = {"missing": "dee2e8", "not finite": "ff00b8", "alarm": "cd141e", "note": "be6e00"}
"""No scale contains them; that of NaN and infinities, magenta, is the same in the tab."""

LEVELS = 160
MISSING, NOT_FINITE, ALARM, NOTE, INK = range(LEVELS, LEVELS + 5)
PAPER = 255
"""Indices of a palette: values from 0 to LEVELS - 1, four other colours, then greys from ink to paper."""


def _palette(at: Sequence[float], colours: Sequence[str]) -> Pixels:
    """Return RGB colours, shape (256, 3); the values have `colours` at the positions `at`, and between them a blend."""
    channels = np.array([list(bytes.fromhex(code)) for code in colours]).T
    values = np.stack([np.interp(np.linspace(0, 1, LEVELS), at, channel) for channel in channels], axis=1)
    others = [list(bytes.fromhex(code)) for code in OTHER_COLOURS.values()]
    greys = np.repeat(np.linspace(20, 255, PAPER - INK + 1)[:, None], 3, axis=1)
    palette: Pixels = np.rint(np.concatenate([values, others, greys])).astype(np.uint8)
    return palette


HEAT = _palette([*COLOURS], [*COLOURS.values()])
GREY = _palette([0, 1], ["000000", "ffffff"])


def indices(shares: np.ndarray) -> Pixels:
    """Return the palette index of each share of a scale, clipped to [0, 1]; NOT_FINITE for NaN and infinities.

    >>> indices(np.array([0.0, 1.0, 7.0, np.nan])).tolist()
    [0, 159, 159, 161]
    """
    finite = np.isfinite(shares)
    clipped = np.clip(np.where(finite, shares, 0), 0, 1)
    return np.where(finite, np.rint(clipped * (LEVELS - 1)), NOT_FINITE).astype(np.uint8)


WIDTH = 700
"""Width of a picture in pixels. A card of TensorBoard shows every second one, and all after a click or on a screen of
high resolution."""

FONT_SIZE = 22
LINE_HEIGHT = 28
MARGIN = 8
BAR_HEIGHT = 60

PNG_COMPRESSION = 3
"""Level of zlib: a higher one costs more time than the saved bytes take to write."""


@dataclass(frozen=True)
class Bar:
    """A colour bar with the values that the colours stand for.

    Args:
        label: stands left of the bar.
        left: where the label begins, in pixels from the left of the picture's pixels.
        start: where the bar begins. Default: right after the label.
        ends: words at the ends of the bar, instead of all numbers.
        keys: further colours, by palette index, and what they mean.
    """

    scale: ColourScale
    label: str
    left: int = 0
    right: int = WIDTH - 2 * MARGIN
    start: int | None = None
    ends: tuple[str, str] | None = None
    keys: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class Picture:
    """Pixels, and what explains them.

    Args:
        pixels: palette indices of shape (height, width), or RGB of shape (height, width, 3); uint8.
        is_photo: True to encode as JPEG, with loss.
        bars: the colour bars below the pixels, side by side.
    """

    pixels: Pixels
    caption: str
    palette: Pixels = field(default_factory=lambda: HEAT, repr=False)
    is_photo: bool = False
    bars: tuple[Bar, ...] = ()

    def image(self) -> Image.Image:
        """Return the pixels with the caption above them and the bars below."""
        height, width = self.pixels.shape[:2]
        full = max(width + 2 * MARGIN, WIDTH)
        caption = wrapped(self.caption, full - 2 * MARGIN)
        top = 2 * MARGIN + LINE_HEIGHT * len(caption)
        end = top + height
        size = (end + (BAR_HEIGHT if self.bars else MARGIN), full, *self.pixels.shape[2:])
        canvas = np.full(size, PAPER, np.uint8)
        canvas[top:end, MARGIN : MARGIN + width] = self.pixels
        image = Image.fromarray(canvas)
        draw = pen(image)
        for k, line in enumerate(caption):
            draw.text((MARGIN, MARGIN + k * LINE_HEIGHT), line, self._colour(INK), font())
        for bar in self.bars:
            self._draw_bar(image, draw, bar, end)
        return self._coloured(image)

    def tiles(self) -> Image.Image:
        """Return the pixels alone, without blank rows and columns around them."""
        is_drawn = self.pixels != PAPER if self.pixels.ndim == 2 else (self.pixels != PAPER).any(axis=2)
        rows, columns = (np.flatnonzero(is_drawn.any(axis=axis)) for axis in (1, 0))
        part = self.pixels[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] if len(rows) else self.pixels
        return self._coloured(Image.fromarray(np.ascontiguousarray(part)))

    def encode(self) -> tuple[bytes, int, int]:
        """Return the encoded image, its width and its height: JPEG for photographs, otherwise lossless PNG."""
        image, file = self.image(), io.BytesIO()
        if self.is_photo:
            image.save(file, "JPEG", quality=90)
        else:
            image.save(file, "PNG", compress_level=PNG_COMPRESSION)
        return file.getvalue(), image.width, image.height

    def _draw_bar(self, image: Image.Image, draw: ImageDraw.ImageDraw, bar: Bar, end: int) -> None:
        ink, top, left, right = self._colour(INK), end + 10, MARGIN + bar.left, MARGIN + bar.right
        draw.text((left, top + 8), bar.label, ink, font(), "lm")
        x = left
        for index, words in bar.keys:
            draw.rectangle((x, top + 26, x + 13, top + 39), self._colour(index))
            draw.text((x + 18, top + 20), words, ink, font())
            x += 30 + round(font().getlength(words))
        behind = max(left + round(font().getlength(bar.label)), x) + MARGIN
        start = behind if bar.start is None else MARGIN + bar.start
        levels = (np.arange(right - start) * (LEVELS - 1) // max(right - start - 1, 1)).astype(np.uint8)
        strip = np.repeat(levels[None], 16, axis=0)
        image.paste(Image.fromarray(strip if self.pixels.ndim == 2 else self.palette[strip]), (start, top))
        scale, ends = bar.scale, bar.ends or bar.scale.ends
        marks = [(float(start), ends[0]), (right - 1.0, ends[1])]
        if bar.ends is None:
            at = start + scale.shares(np.array(scale.ticks())) * (right - 1 - start)
            marks += zip(at.tolist(), [f"{value:.3g}" for value in scale.ticks()], strict=True)
        draw_ticks(draw, marks, top + 16, (start, right), ink)

    def _colour(self, index: int) -> int | tuple[int, ...]:
        """Return a colour of the palette as Pillow takes it: its index or, for a picture in RGB, its three values."""
        return index if self.pixels.ndim == 2 else tuple(self.palette[index].tolist())

    def _coloured(self, image: Image.Image) -> Image.Image:
        if self.pixels.ndim == 2:
            image.putpalette(self.palette.tobytes())
        return image


def pen(image: Image.Image) -> ImageDraw.ImageDraw:
    """Return what draws on an image of RGB or of palette indices, on which it blends ink and paper by their indices."""
    draw = ImageDraw.Draw(image)
    draw.fontmode = "L"
    return draw


@functools.cache
def font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Return the font of captions and labels, at `FONT_SIZE`."""
    return ImageFont.load_default(FONT_SIZE)


def draw_ticks(
    draw: ImageDraw.ImageDraw,
    marks: Sequence[tuple[float, str]],
    top: int,
    within: tuple[int, int],
    ink: int | tuple[int, ...] = INK,
) -> None:
    """Draw marks of an axis, each with its label below it; none whose label would touch that of an earlier one.

    Labels may begin and end `within` these positions.
    """
    taken: list[tuple[float, float]] = []
    for x, text in marks:
        half = font().getlength(text) / 2
        middle = min(max(x, within[0] + half), within[1] - half)
        if all(abs(middle - other) > half + its_half + 12 for other, its_half in taken):
            taken.append((middle, half))
            draw.line((round(x), top, round(x), top + 5), ink, 2)
            draw.text((middle, top + 6), text, ink, font(), "ma")


def wrapped(text: str, width: int) -> list[str]:
    """Break a text into lines of at most `width` pixels, between words."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".lstrip()
        if lines[-1] and font().getlength(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines
