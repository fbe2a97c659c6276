"""Draws the heat map of a run: a row for each layer, a column for each step, legible on a card of TensorBoard."""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from PIL import Image, ImageDraw

from hookboard.images.picture import (
    ALARM,
    FONT_SIZE,
    INK,
    MARGIN,
    MISSING,
    NOT_FINITE,
    NOTE,
    PAPER,
    WIDTH,
    Bar,
    ColourScale,
    Picture,
    Pixels,
    draw_ticks,
    font,
    indices,
    log_scale,
    pen,
)

Mark = Literal["alarm", "note"]

MARKS: dict[Mark, int] = {"alarm": ALARM, "note": NOTE}  # palette indices

LABEL_HEIGHT = FONT_SIZE + 2  # at least, between the middles of two labels

MARK_WIDTH = 8  # of the marks beside the rows

NAME_WIDTHS = (150, 280)  # minimum and maximum; below the labels are the unit and the colours of missing values

MAP_WIDTH = WIDTH - 2 * MARGIN

MAX_ROWS_HEIGHT = 290
"""Of all rows together, unless there are more rows than pixels: with caption and axis they fill a card of the Time
Series tab, which shrinks taller pictures."""

MIN_MARKED_HEIGHT = 8  # of a marked row, if there are at most MAX_ENLARGED_MARKS of them

MAX_ENLARGED_MARKS = 16

AXIS_HEIGHT = 34  # of the axis of steps


def heat_map(
    values: np.ndarray,
    names: Sequence[str],
    steps: Sequence[int],
    *,
    title: str,
    unit: str,
    marks: Mapping[str, Mark] | None = None,
    scale: ColourScale | None = None,
    of: int | None = None,
) -> Picture:
    """Draw a quantity of layers (`of` so many) over a run, a row for each; NaN is missing, infinity not finite."""
    scale = log_scale(values) if scale is None else scale
    kinds = {row: (marks or {})[name] for row, name in enumerate(names) if name in (marks or {})}
    start = common_start(names)
    short = [name.removeprefix(start) for name in names]
    edges = _edges(len(names), kinds)
    labels = labels_of(short, edges, sorted(kinds, key=lambda row: kinds[row] != "alarm"))
    longest = max((font().getlength(short[row]) for row in labels), default=0.0)
    left = round(np.clip(longest, *NAME_WIDTHS)) + 44
    right = MAP_WIDTH - MARK_WIDTH
    pixels = np.full((edges[-1] + AXIS_HEIGHT, MAP_WIDTH), PAPER, np.uint8)
    pixels[: edges[-1], left:right] = np.repeat(_columns(_indices(values, scale), right - left), np.diff(edges), axis=0)
    image = Image.fromarray(pixels)
    draw = pen(image)
    for row, kind in kinds.items():
        bottom = max(edges[row + 1], edges[row] + 1) - 1
        for x in (left - MARK_WIDTH, right):
            draw.rectangle((x, edges[row], x + MARK_WIDTH - 1, bottom), MARKS[kind])
    for row, at in labels.items():
        middle = (edges[row] + edges[row + 1]) / 2
        _draw_label(draw, short[row], at, middle, left - MARK_WIDTH, kinds.get(row))
    columns = len(steps)
    shown = dict.fromkeys([0, columns - 1, *(columns * k // 4 for k in (2, 1, 3))] if columns else [])
    ticks = [(left + (column + 0.5) * (right - left) / columns, str(steps[column])) for column in shown]
    draw_ticks(draw, ticks, edges[-1], (left, MAP_WIDTH))
    draw.text((0, edges[-1] + 6), "step", INK, font())
    keys = (MISSING, "none", np.isnan(values).any()), (NOT_FINITE, "NaN", np.isinf(values).any())
    there = tuple((index, words) for index, words, is_there in keys if is_there)
    bar = Bar(scale, f"{unit}, log" if scale.is_log else unit, right=right, start=left, keys=there)
    where = f" in {start[:-1]}" if start else ""
    counts = [(list(kinds.values()).count(kind), kind) for kind in MARKS]
    marked = " and ".join(f"{count} {kind}{'s' * (count > 1)}" for count, kind in counts if count)
    all_of = f" of the {of}" if of not in (None, len(names)) else ""
    caption = f"{title} of {len(names)}{all_of} layers{where}{f', marked: {marked}' if marked else ''}"
    return Picture(np.asarray(image), caption, bars=(bar,))


def common_start(names: Sequence[str]) -> str:
    """Return the parts, never the last, that all dotted names begin with, and a dot; "" if there are none.

    >>> common_start(["net.encoder.0", "net.encoder.1.norm"])
    'net.encoder.'
    """
    parts = [name.split(".")[:-1] for name in names]
    same = 0
    while parts and all(len(part) > same and part[same] == parts[0][same] for part in parts):
        same += 1
    return "".join(f"{word}." for word in parts[0][:same]) if parts else ""


def labels_of(names: Sequence[str], edges: Sequence[int], marked: Sequence[int]) -> dict[int, float]:
    """Return row -> middle of its label, in pixels from the top, if it overlaps none; marked rows come first."""
    height, half = edges[-1], LABEL_HEIGHT / 2
    middles = np.clip((np.array(edges[:-1]) + edges[1:]) / 2, half, max(half, height - half)).tolist()
    placed: dict[int, float] = {}

    def same_parts(row: int) -> int:
        """Count the first parts of the name that the row above has too."""
        return len(common_start(names[row - 1 : row + 1])) if row else 0

    # Then come rows with which a block of layers begins.
    for row in [*marked, *sorted(range(len(names)), key=same_parts)]:
        if all(abs(middles[row] - at) >= LABEL_HEIGHT for at in placed.values()):
            placed[row] = middles[row]
    return placed


def _edges(rows: int, kinds: Mapping[int, Mark]) -> list[int]:
    """Return where each row begins, in pixels, and the last one ends; a few marked rows are higher than others."""
    each = min(28.0, max(1.0, MAX_ROWS_HEIGHT / max(rows, 1))) if rows <= 720 else 720 / rows  # else some share a pixel
    heights = np.full(rows, each)
    if len(kinds) <= MAX_ENLARGED_MARKS and each < MIN_MARKED_HEIGHT:
        if each > 1:  # the others make room
            heights[:] = max(1.0, (MAX_ROWS_HEIGHT - MIN_MARKED_HEIGHT * len(kinds)) / max(rows - len(kinds), 1))
        heights[list(kinds)] = MIN_MARKED_HEIGHT
    return [0, *np.rint(np.cumsum(heights)).astype(int).tolist()]


def _indices(values: np.ndarray, scale: ColourScale) -> Pixels:
    drawn = indices(scale.shares(values))
    drawn[np.isnan(values)] = MISSING
    return drawn


def _columns(drawn: Pixels, width: int) -> Pixels:
    """Repeat columns to fill the width, or leave some out; one that is left out may hold the only value not finite."""
    columns = drawn.shape[1]
    if columns <= width:
        return drawn[:, np.arange(width) * columns // width]
    wide = drawn[:, np.rint(np.linspace(0, columns - 1, width)).astype(int)]
    row, column = np.nonzero(drawn == NOT_FINITE)
    wide[row, column * width // columns] = NOT_FINITE
    return wide


def _draw_label(draw: ImageDraw.ImageDraw, text: str, at: float, middle: float, left: int, mark: Mark | None) -> None:
    """Draw a name that ends before `left`, a line from it to the middle of its row, and a triangle if it is marked."""
    right = left - 16
    while font().getlength(text) > right - 20:
        text = f"…{text.lstrip('…')[1:]}"
    ink = INK + 30 if mark is None else MARKS[mark]
    draw.line((right + 4, at, left - 3, middle), ink, 2)
    draw.text((right, at), text, INK, font(), "rm")
    if mark is not None:
        begin = right - font().getlength(text) - 8
        draw.polygon([(begin - 12, at - 7), (begin - 12, at + 7), (begin, at)], ink)
