"""The heat map of a run: a row for each layer, a column for each step, readable on a card of TensorBoard."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hookboard.images.colour import INK, PAPER, Pixels
from hookboard.images.heat_colours import MARKS, NOT_FINITE, NOTHING, PALETTE, SHADES, Mark
from hookboard.images.heat_scale import Scale, log_scale
from hookboard.images.letters import Letters, Side, length
from hookboard.images.picture import Picture
from hookboard.images.row_labels import LINE, Label, common_start, labels_of, shortened

EDGE = 4
"""The width of the marks beside the rows."""

TICK = 8
"""The room between names and rows."""

NAMES = (66, 140)
"""The least and the most room for names; below them stand the unit and the colours of missing values."""

WIDTH = 350
"""The width of a picture: that of a card of the Images tab, where it is then shown pixel by pixel."""

TALL = 153
"""How high the rows are all together, if each can be a pixel high. With the caption and the axis that is what a card
of the Time Series tab has room for; a taller picture is shrunk there."""

MARKED = 7
"""The least height of a marked row, as long as there are few of them; a line of paper above and below sets it off."""

FEW = 16

BOTTOM = 38
"""The room for the axis and the bar."""


class Place(NamedTuple):
    """Where the parts of a heat map stand, in pixels.

    Args:
        left: where its columns begin.
        width: how wide they are together.
        edges: where each row begins, and where the last one ends.
    """

    left: int
    width: int
    edges: list[int]


def heat_map(
    values: np.ndarray,
    names: Sequence[str],
    steps: Sequence[int],
    *,
    title: str,
    unit: str,
    marks: Mapping[str, Mark] | None = None,
    scale: Scale | None = None,
    of: int | None = None,
) -> Picture:
    """A heat map of a quantity of many layers over a run.

    Rows are as high as they can be. Rows that are not marked may share a pixel if there are more than 720.

    Args:
        values: shape (rows, columns), float64; NaN where there is no value, infinite where it is NaN or infinite.
        names: the dotted name of each row.
        steps: the step of each column.
        title: what it shows, for the caption.
        unit: the unit of the values, a word or two.
        marks: the rows to mark, by name.
        scale: which values the colours stand for; left out, a logarithmic scale that suits the values.
        of: how many layers there are; left out, as many as rows.
    """
    scale = log_scale(values) if scale is None else scale
    kinds = {row: (marks or {})[name] for row, name in enumerate(names) if name in (marks or {})}
    start = common_start(names)
    short = [name.removeprefix(start) for name in names]
    edges = _edges(len(names), kinds)
    labels = labels_of(short, edges, sorted(kinds, key=lambda row: kinds[row] != "alarm"))
    unit = f"{unit}, log" if scale.is_log else unit
    longest = max(length(text) for text in (unit, *(label.text for label in labels)))
    left = round(np.clip(longest, *NAMES)) + 10 + TICK + EDGE
    place = Place(left, WIDTH - left - EDGE - 4, edges)
    letters = Letters(WIDTH, edges[-1] + BOTTOM)
    pixels = np.full((edges[-1] + BOTTOM, WIDTH), PAPER, np.uint8)
    _draw_cells(pixels, values, scale, place, kinds)
    for label in labels:
        _draw_label(pixels, letters, label, place, kinds.get(label.first) if label.first == label.last else None)
    _draw_steps(pixels, letters, steps, place)
    _draw_bar(pixels, letters, values, scale, unit, place)
    letters.stamp(pixels)
    where = f" in {start[:-1]}" if start else ""
    counts = [(list(kinds.values()).count(kind), kind) for kind in MARKS]
    marked = " and ".join(f"{count} by {kind}s" for count, kind in counts if count)
    all_of = f" of the {of}" if of not in (None, len(names)) else ""
    caption = f"{title} of {len(names)}{all_of} layers{where}{f', marked: {marked}' if marked else ''}"
    return Picture(pixels, caption, PALETTE)


def _edges(rows: int, kinds: Mapping[int, Mark]) -> list[int]:
    """Where each row begins, and where the last one ends."""
    each = min(14.0, max(1.0, TALL / max(rows, 1))) if rows <= 720 else 720 / rows
    heights = np.full(rows, each)
    if len(kinds) <= FEW and each < MARKED:
        if each > 1:  # the others make room
            heights[:] = max(1.0, (TALL - MARKED * len(kinds)) / max(rows - len(kinds), 1))
        heights[list(kinds)] = MARKED
    return [0, *np.rint(np.cumsum(heights)).astype(int).tolist()]


def _draw_cells(pixels: Pixels, values: np.ndarray, scale: Scale, place: Place, kinds: Mapping[int, Mark]) -> None:
    columns = values.shape[1]
    drawn = np.full(values.shape, NOTHING, np.uint8)
    shares = scale.shares(values)
    has_value = np.isfinite(shares)
    drawn[has_value] = np.rint(shares[has_value] * (SHADES - 1)).astype(np.uint8)
    drawn[np.isinf(values)] = NOT_FINITE
    if columns <= place.width:
        wide = drawn[:, np.arange(place.width) * columns // place.width]
    else:
        wide = drawn[:, np.rint(np.linspace(0, columns - 1, place.width)).astype(int)]
        # A column that is left out may hold the only value that is not finite.
        row, column = np.nonzero(drawn == NOT_FINITE)
        wide[row, column * place.width // columns] = NOT_FINITE
    heights = np.diff(place.edges)
    pixels[: place.edges[-1], place.left : place.left + place.width] = np.repeat(wide, heights, axis=0)
    for marked, mark in kinds.items():
        top, bottom = place.edges[marked], max(place.edges[marked + 1], place.edges[marked] + 1)
        if len(kinds) <= FEW:
            pixels[[top, bottom - 1], place.left : place.left + place.width] = PAPER
            top, bottom = top + 1, bottom - 1
        pixels[top:bottom, place.left - EDGE : place.left] = MARKS[mark]
        pixels[top:bottom, place.left + place.width : place.left + place.width + EDGE] = MARKS[mark]


def _draw_label(pixels: Pixels, letters: Letters, label: Label, place: Place, mark: Mark | None) -> None:
    right = place.left - EDGE - TICK
    width = letters.write(shortened(label.text, right - 9, length), right, label.at - LINE / 2, "right", mark)
    top, bottom = place.edges[label.first], place.edges[label.last + 1]
    row = min((top + bottom) // 2, len(pixels) - 1)
    at, ink = min(round(label.at), place.edges[-1] - 1), (INK + 8 if mark is None else MARKS[mark])
    if mark is not None:
        for i in range(6):  # a triangle that points at the name
            pixels[max(at - 3 + i // 2, 0) : at + 4 - i // 2, right - width - 8 + i] = ink
    if label.first != label.last:  # a bracket around the block
        pixels[top + 1 : max(bottom - 1, top + 2), right + 4] = ink
        pixels[at, right + 2 : right + 5] = ink
    else:
        pixels[at, right + 2 : right + 5] = ink
        pixels[min(at, row) : max(at, row) + 1, right + 5] = ink
        pixels[row, right + 5 : right + TICK] = ink


def _draw_steps(pixels: Pixels, letters: Letters, steps: Sequence[int], place: Place) -> None:
    """The axis of steps: the first and the last, and those between that have room."""
    bottom, columns = place.edges[-1], len(steps)
    letters.write("step", place.left - EDGE - 2, bottom + 3, "right")
    taken: list[tuple[float, float]] = []
    for column in dict.fromkeys([0, columns - 1, *(columns * k // 4 for k in (2, 1, 3))] if columns else []):
        x = place.left + round((column + 0.5) * place.width / columns)
        text = str(steps[column])
        half = length(text) / 2
        middle = min(max(x, place.left + half), place.left + place.width + EDGE - half)
        if all(middle + half + 8 < low or middle - half - 8 > high for low, high in taken):
            taken.append((middle - half, middle + half))
            letters.write(text, middle, bottom + 3, "middle")
            pixels[bottom : bottom + 3, min(x, WIDTH - 1)] = INK


def _draw_bar(pixels: Pixels, letters: Letters, values: np.ndarray, scale: Scale, unit: str, place: Place) -> None:
    """The colours with the values that they stand for, and those of missing values if there are any."""
    top = place.edges[-1] + 18
    shades = np.arange(place.width) * (SHADES - 1) // max(place.width - 1, 1)
    pixels[top : top + 8, place.left : place.left + place.width] = shades
    letters.write(unit, place.left - EDGE - 2, top - 3, "right")
    low, high = scale.ends
    ends: list[tuple[str, float, Side]] = [(low, place.left, "left"), (high, place.left + place.width, "right")]
    taken = [(place.left, place.left + length(low)), (place.left + place.width - length(high), WIDTH)]
    for value in scale.decades():
        x = place.left + float(scale.shares(np.array([value]))[0]) * (place.width - 1)
        text, half = f"{value:.2g}", length(f"{value:.2g}") / 2
        pixels[top + 8 : top + 10, round(x)] = INK
        if all(x + half + 5 < a or x - half - 5 > b for a, b in taken):
            taken.append((x - half, x + half))
            ends.append((text, x, "middle"))
    for text, x, side in ends:
        letters.write(text, x, top + 9, side)
    x = 4
    for text, index, is_there in (
        ("none", NOTHING, np.isnan(values).any()),
        ("NaN", NOT_FINITE, np.isinf(values).any()),  # there is no room for "NaN or infinite"
    ):
        if is_there and x + 11 + length(text) < place.left:
            pixels[top + 11 : top + 19, x : x + 8] = index
            letters.write(text, x + 11, top + 9, "left")
            x += 17 + round(length(text))
