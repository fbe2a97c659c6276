"""Draws histograms, for loggers that take pictures alone."""

import math
from collections.abc import Sequence

import numpy as np
from PIL import Image

from hookboard.images.colour_scale import ColourScale
from hookboard.images.picture import MARGIN, PAPER, WIDTH, Picture, draw_ticks, pen

BAR_COLOUR = 40
HEIGHT = 240
"""Height of the highest bar in pixels."""

AXIS_HEIGHT = 34

SHEET_COLUMNS = 3


def histogram_picture(name: str, counts: np.ndarray, edges: np.ndarray) -> Picture:
    """Draw a histogram: the area of a bar is its share of the values.

    Args:
        name: what is counted.
        counts: shape (n,), with n > 0.
        edges: shape (n + 1,), ascending; where all are the same, the values are one bar.

    >>> histogram_picture("net.0", np.array([1.0, 3.0]), np.array([0.0, 1.0, 2.0])).caption
    'net.0: 4 values from 0 to 2'
    """
    scale = ColourScale(float(edges[0]), float(edges[-1]))
    width = WIDTH - 2 * MARGIN
    at = np.linspace(scale.low, scale.high, width)
    of_column = np.clip(np.searchsorted(edges, at, side="right") - 1, 0, len(counts) - 1)
    widths = np.diff(edges)
    density = np.divide(counts, widths, out=np.array(counts, dtype=float), where=widths > 0)[of_column]
    heights = np.ceil(HEIGHT * density / density.max()) if density.max() > 0 else density
    pixels = np.full((HEIGHT + AXIS_HEIGHT, width), PAPER, np.uint8)
    pixels[:HEIGHT][np.arange(HEIGHT, 0, -1)[:, None] <= heights] = BAR_COLOUR
    image = Image.fromarray(pixels)
    ticks = scale.ticks()
    marks = zip((scale.shares(np.array(ticks)) * (width - 1)).tolist(), [f"{tick:.3g}" for tick in ticks], strict=True)
    draw_ticks(pen(image), [*marks], HEIGHT, (0, width))
    caption = f"{name}: {counts.sum():,.0f} values from {scale.low:.3g} to {scale.high:.3g}"
    return Picture(np.asarray(image), caption)


def sheet(pictures: Sequence[Picture]) -> Image.Image:
    """Return pictures of one width on one sheet, SHEET_COLUMNS in a row."""
    images = [picture.image().convert("RGB") for picture in pictures]
    width, height = images[0].width, max(image.height for image in images)
    columns = min(SHEET_COLUMNS, len(images))
    drawn = Image.new("RGB", (columns * width, math.ceil(len(images) / columns) * height), "white")
    for place, image in enumerate(images):
        drawn.paste(image, (place % columns * width, place // columns * height))
    return drawn
