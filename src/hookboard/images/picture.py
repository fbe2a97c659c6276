"""A picture that is ready to be logged: pixels, tiles, colours and what they stand for, captions, maps over it."""

import functools
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

MAX_DECADES_BEYOND_BULK = 2.0
"""How many decades the scale extends at most beyond the 5th and the 95th percentile, unless they are further apart."""


@dataclass(frozen=True)
class ColourScale:
    """The range of values that the colours span; `is_cut` tells whether values are below `low`, and above `high`."""

    low: float
    high: float
    is_log: bool = False
    is_cut: tuple[bool, bool] = (False, False)

    def shares(self, values: np.ndarray) -> np.ndarray:
        """Return the position of each value on the scale, from 0 to 1; NaN where the value is not finite."""
        finite = np.where(np.isfinite(values), values, np.nan)
        if self.is_log:
            with np.errstate(divide="ignore"):
                finite = np.log10(np.maximum(finite, 0.0))
            low, high = math.log10(self.low), math.log10(self.high)
        else:
            low, high = self.low, self.high
        return np.clip((finite - low) / (high - low), 0.0, 1.0)

    @property
    def ends(self) -> tuple[str, str]:
        """The labels of both ends, such as "<0.01" and "1"."""
        low, high = f"{self.low:.3g}", f"{self.high:.3g}"
        return ("<" if self.is_cut[0] else "") + low, (">" if self.is_cut[1] else "") + high

    def ticks(self) -> list[float]:
        """Return the powers of ten on a logarithmic scale; on a linear one, at most six round numbers.

        >>> ColourScale(0.0, 1.0).ticks(), ColourScale(-3.2, 4.1).ticks()
        ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [-2.0, 0.0, 2.0, 4.0])
        """
        if self.is_log:
            first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
            return [10.0**exponent for exponent in range(first, last + 1)]
        if not self.low < self.high:
            return []
        power = math.floor(math.log10(self.high / 2 - self.low / 2))
        step = next(k for k in (1, 2, 5) if (self.high - self.low) / 10.0**power <= 5 * k)
        multiples = range(math.ceil(self.low / 10.0**power / step), math.floor(self.high / 10.0**power / step) + 1)
        return [float(f"{multiple * step}e{power}") for multiple in multiples]


def log_scale(values: np.ndarray) -> ColourScale:
    """Return a logarithmic scale of at least one decade that fits the values; far outliers are cut off."""
    positive = values[np.isfinite(values) & (values > 0)]
    has_zero = bool((values == 0).any())
    if not len(positive):
        return ColourScale(0.1, 1.0, True, (has_zero, False))
    logs = np.log10(positive)
    least, greatest = float(logs.min()), float(logs.max())
    bottom, top = np.percentile(logs, [5, 95]).tolist()
    low, high = (
        max(least, bottom - max(MAX_DECADES_BEYOND_BULK, top - bottom)),
        min(greatest, top + max(MAX_DECADES_BEYOND_BULK, top - bottom)),
    )
    narrow = max(0.0, 1.0 - (high - low)) / 2
    # 0 has the lowest colour, half a decade below the others.
    low, high = low - narrow - (0.5 if has_zero else 0.0), high + narrow
    return ColourScale(10.0**low, 10.0**high, True, (has_zero or low > least, high < greatest))


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
"""By position on the scale, as in the tab (`board/static/map.js`): viridis (Nathaniel Smith, Stefan van der Walt; CC0)
without its darkest end. Its lightness rises, so that it stays legible in print and to the colour-blind."""

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

PNG_COMPRESSION = 3  # of zlib: a higher one costs more time than the saved bytes take to write


@dataclass(frozen=True)
class Bar:
    """A colour bar with the values that the colours stand for.

    Args:
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
    """Palette indices, (height, width), or RGB, (height, width, 3), and what explains them; a photo becomes a JPEG."""

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
    """Draw marks of an axis with labels `within` these positions, but none whose label would touch an earlier one."""
    placed: list[tuple[float, float]] = []
    for x, text in marks:
        half = font().getlength(text) / 2
        middle = min(max(x, within[0] + half), within[1] - half)
        if all(abs(middle - other) > half + its_half + 12 for other, its_half in placed):
            placed.append((middle, half))
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


TILE_GAP = 2  # pixels between two tiles


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
    """Arrange tiles of shape (n, height, width) or (n, height, width, 3) in rows and columns, with white gaps."""
    # torchvision's `make_grid` takes 6 to 20 times as long, and occupies torch's threads.
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


MAX_OPACITY = 0.7  # of the colours over the picture where a map is greatest; where it is 0 they are transparent


def unnormalized(inputs: Tensor, mean: Sequence[float] | None, std: Sequence[float] | None) -> Pixels:
    """Return a model's inputs, (n, channels, height, width), as the pictures before, (n, height, width, 3), uint8."""
    pixels = inputs.detach().float().cpu()
    channels = pixels.shape[1]
    if mean is not None and std is not None:
        factor, shift = (torch.tensor(each, device="cpu").view(-1, 1, 1) for each in (std, mean))
        pixels = pixels * factor + shift
    else:
        # Each picture is stretched from its smallest to its largest value.
        is_finite = pixels.isfinite()
        low = pixels.where(is_finite, math.inf).amin(dim=(1, 2, 3), keepdim=True)
        high = pixels.where(is_finite, -math.inf).amax(dim=(1, 2, 3), keepdim=True)
        pixels = (pixels - low) / (high - low).clamp(min=1e-12)
    if channels != 3:
        pixels = pixels.mean(dim=1, keepdim=True).expand(-1, 3, -1, -1)
    shown: Pixels = pixels.nan_to_num(0).clamp(0, 1).mul(255).round().byte().permute(0, 2, 3, 1).numpy()
    return shown


def overlays(inputs: Pixels, maps: Tensor, texts: Sequence[str], caption: str, *, size: int) -> Picture:
    """Draw a row for each sample: the input, its map (negative as 0) scaled to its maximum, and both together."""
    photos = torch.from_numpy(inputs).permute(0, 3, 1, 2).float() / 255
    heat = torch.nn.functional.interpolate(
        maps.detach().float().cpu().clamp(min=0)[:, None], size=inputs.shape[1:3], mode="bilinear", align_corners=False
    )
    heat = heat / heat.amax(dim=(1, 2, 3), keepdim=True).where(heat.amax(dim=(1, 2, 3), keepdim=True) > 0, 1)
    small = shrink(torch.cat([photos, heat], dim=1), size).numpy().transpose(0, 2, 3, 1)
    shares, picture, colours = small[..., 3], small[..., :3] * 255, HEAT[indices(small[..., 3])]
    opacity = MAX_OPACITY * shares[..., None]
    columns = np.stack([picture, colours, picture + opacity * (colours - picture)], axis=1)
    drawn = np.rint(columns).astype(np.uint8)
    rows = [grid(enlarge(row, size), len(row)) for row in drawn]
    parts = [part for text, row in zip(texts, rows, strict=True) for part in (_line(text, row.shape[1]), row)]
    bar = Bar(ColourScale(0.0, 1.0), "map, relative to its maximum", right=rows[0].shape[1])
    # What was enlarged has few different pixels: PNG holds them in less than JPEG.
    return Picture(joined(parts, axis=0), caption, is_photo=max(drawn.shape[2:4]) * 2 > size, bars=(bar,))


def _line(text: str, width: int) -> Pixels:
    image = Image.new("RGB", (max(width, round(font().getlength(text)) + 1), LINE_HEIGHT), (PAPER,) * 3)
    pen(image).text((0, 2), text, (20, 20, 20), font())
    return np.asarray(image)
