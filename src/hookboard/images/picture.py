"""A picture that is ready to be logged: pixels, with a caption above them that says what they show."""

import io
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from hookboard.images.colour import INK, PALETTE, PAPER

FONT_SIZE = 12
LEAST_WIDTH = 360
"""Pixels: narrower pictures get paper beside them, for their captions to be read."""

MARGIN = 4


@dataclass(frozen=True)
class Picture:
    """Pixels and what they show.

    Args:
        pixels: shape (height, width) with indices of the palette, or (height, width, 3) with RGB; uint8.
        caption: one sentence; it is drawn above the pixels.
        is_photo: whether the pixels may be coded with loss, as a photograph is.
    """

    pixels: np.ndarray
    caption: str
    is_photo: bool = False

    def image(self) -> Image.Image:
        """The pixels with the caption above them."""
        height, width = self.pixels.shape[:2]
        text = _text(self.caption, max(width, LEAST_WIDTH))
        if self.pixels.ndim == 3:
            text = PALETTE[text]
        canvas = np.full((text.shape[0] + height, max(width, LEAST_WIDTH), *self.pixels.shape[2:]), PAPER, np.uint8)
        canvas[: text.shape[0]] = text
        canvas[text.shape[0] :, :width] = self.pixels
        image = Image.fromarray(canvas)
        if self.pixels.ndim == 2:
            image.putpalette(PALETTE.tobytes())
        return image

    def encode(self) -> tuple[bytes, int, int]:
        """The coded image, its width and its height: JPEG for photographs, else PNG, which loses nothing."""
        image, file = self.image(), io.BytesIO()
        if self.is_photo:
            image.save(file, "JPEG", quality=90)
        else:
            image.save(file, "PNG")
        return file.getvalue(), image.width, image.height


def _text(caption: str, width: int) -> np.ndarray:
    """The caption as palette indices, shape (height, width)."""
    font = ImageFont.load_default(FONT_SIZE)
    lines = [""]
    for word in caption.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and font.getlength(longer) > width - 2 * MARGIN:
            lines.append(word)
        else:
            lines[-1] = longer
    line_height = FONT_SIZE + 3
    strip = Image.new("L", (width, len(lines) * line_height + 2 * MARGIN), 255)
    draw = ImageDraw.Draw(strip)
    for k, line in enumerate(lines):
        draw.text((MARGIN, MARGIN + k * line_height), line, fill=0, font=font)
    grey = np.asarray(strip, dtype=float) / 255
    return np.rint(INK + grey * (PAPER - INK)).astype(np.uint8)
