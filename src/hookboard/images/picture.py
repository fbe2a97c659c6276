"""A picture that is ready to be logged: pixels, with a caption above them that says what they show."""

import functools
import io
import math
from dataclasses import dataclass, field

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from hookboard.images.colour import HEAT, INK, PAPER, Pixels
from hookboard.images.tiles import CARD

FONT_SIZE = 12
LINE_HEIGHT = FONT_SIZE + 4
MARGIN = 4
SPACE = 4

COMPRESSION = 3
"""Of zlib: more takes longer than the bytes that it saves take to be written."""


@dataclass(frozen=True)
class Picture:
    """Pixels and what they show.

    Args:
        pixels: shape (height, width) with indices of the palette, or (height, width, 3) with RGB; uint8.
        caption: one sentence; it is drawn above the pixels.
        palette: the colours of the indices, shape (256, 3).
        is_photo: whether the pixels may be coded with loss, as a photograph is.
    """

    pixels: Pixels
    caption: str
    palette: Pixels = field(default_factory=lambda: HEAT, repr=False)
    is_photo: bool = False

    def image(self) -> Image.Image:
        """The pixels with the caption above them."""
        height, width = self.pixels.shape[:2]
        text = _text(self.caption, max(width, CARD))
        canvas = np.full((len(text) + height, text.shape[1], *self.pixels.shape[2:]), PAPER, np.uint8)
        canvas[: len(text)] = text if self.pixels.ndim == 2 else self.palette[text]
        canvas[len(text) :, :width] = self.pixels
        image = Image.fromarray(canvas)
        if self.pixels.ndim == 2:
            image.putpalette(self.palette.tobytes())
        return image

    def encode(self) -> tuple[bytes, int, int]:
        """The coded image, its width and its height: JPEG for photographs, else PNG, which loses nothing."""
        image, file = self.image(), io.BytesIO()
        if self.is_photo:
            image.save(file, "JPEG", quality=90)
        else:
            image.save(file, "PNG", compress_level=COMPRESSION)
        return file.getvalue(), image.width, image.height


def _text(caption: str, width: int) -> Pixels:
    """The caption as palette indices, shape (height, width)."""
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
    """One word as palette indices, shape (LINE_HEIGHT, width). Captions differ in few words: the others are kept."""
    font = _font()
    strip = Image.new("L", (math.ceil(font.getlength(word)), LINE_HEIGHT), 255)
    ImageDraw.Draw(strip).text((0, 0), word, fill=0, font=font)
    grey = np.asarray(strip, dtype=float) / 255
    drawn: Pixels = np.rint(INK + grey * (PAPER - INK)).astype(np.uint8)
    return drawn


@functools.cache
def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(FONT_SIZE)


def text_block(text: str, width: int) -> Pixels:
    """A text in as many lines as it needs, as palette indices of shape (height, width)."""
    return _text(text, width)[MARGIN:-MARGIN]
