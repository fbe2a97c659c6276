"""Texts within a picture."""

import functools
from typing import Literal

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from hookboard.images.colour import INK, PAPER, Pixels
from hookboard.images.heat_colours import MARKS, Mark

FONT_SIZE = 12

ROOM = 2
"""Pixels around a text, since letters may begin before its position."""

Side = Literal["left", "middle", "right"]
"""Which end of a text a position is that of."""


class Letters:
    """Texts that are drawn all at once, each in black or in the colour of a mark."""

    def __init__(self, width: int, height: int) -> None:
        self._size = (width, height)
        self._drawn: dict[Mark | None, Image.Image] = {}

    def write(self, text: str, x: float, y: float, side: Side, mark: Mark | None = None) -> int:
        """Write a text whose line begins at height `y`, and return its width."""
        width = round(length(text))
        left = round(x - {"left": 0, "middle": width / 2, "right": width}[side])
        if mark not in self._drawn:
            self._drawn[mark] = Image.new("L", self._size, 0)
        self._drawn[mark].paste(255, (left - ROOM, round(y) - 2 - ROOM), _written(text))
        return width

    def stamp(self, pixels: Pixels) -> None:
        """Put the texts on the pixels."""
        for mark, image in self._drawn.items():
            drawn = np.asarray(image)
            inked = drawn > 16
            darkness = drawn[inked] / 255
            if mark is None:
                pixels[inked] = np.rint(PAPER + darkness * (INK - PAPER)).astype(np.uint8)
            else:
                pixels[inked] = (MARKS[mark] + np.clip(np.rint((1 - darkness) * 8), 0, 7)).astype(np.uint8)


@functools.lru_cache(maxsize=4096)
def length(text: str) -> float:
    """The width of a text in pixels."""
    return _font().getlength(text)


@functools.lru_cache(maxsize=1024)
def _written(text: str) -> Image.Image:
    """The text by itself, with room around it; names of layers are written again in each picture."""
    _, _, right, bottom = _font().getbbox(text)
    image = Image.new("L", (round(right) + 2 * ROOM, round(bottom) + 2 * ROOM), 0)
    ImageDraw.Draw(image).text((ROOM, ROOM), text, fill=255, font=_font())
    return image


@functools.cache
def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(FONT_SIZE)
