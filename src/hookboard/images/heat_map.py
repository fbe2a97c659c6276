"""Draws the heat map of a run: a row for each layer, a column for each step, legible on a card of TensorBoard."""

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from hookboard.images.picture import COLOURS, HEAT, INK, NOT_FINITE, PAPER, Picture, Pixels, font, interpolated

Mark = Literal["alarm", "note"]

SHADES = 200
"""Number of colours for values; they come first in the palette."""

MARKS: dict[Mark, int] = {"alarm": SHADES, "note": SHADES + 8}
"""The palette index of each mark's full colour; seven paler shades follow, for the edges of letters."""

MISSING = SHADES + 16
"""The palette index of cells without a value."""

_RED, _AMBER, _PALE = (205, 20, 30), (190, 110, 0), (222, 226, 232)


def _palette() -> Pixels:
    palette: Pixels = HEAT.copy()
    palette[:SHADES] = interpolated(COLOURS, SHADES)
    paler = np.linspace(0, 1, 8, endpoint=False)[:, None]
    for first, colour in ((MARKS["alarm"], _RED), (MARKS["note"], _AMBER)):
        palette[first : first + 8] = np.rint(np.array(colour) * (1 - paler) + 255 * paler)
    palette[MISSING] = _PALE
    return palette


PALETTE = _palette()


MAX_DECADES_BEYOND_BULK = 2.0
"""How many decades the scale extends at most beyond the 5th and the 95th percentile, unless they are further apart."""


@dataclass(frozen=True)
class ColourScale:
    """The range of values that the colours span.

    Args:
        low: the value of the first colour.
        high: the value of the last colour.
        is_log: True for a logarithmic scale.
        is_cut: whether there are values below `low`, and above `high`; they have the colour of that end.
    """

    low: float
    high: float
    is_log: bool
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
        low, high = f"{self.low:.2g}", f"{self.high:.2g}"
        return ("<" if self.is_cut[0] else "") + low, (">" if self.is_cut[1] else "") + high

    def decades(self) -> list[float]:
        """Return the powers of ten on a logarithmic scale; [] on a linear one."""
        if not self.is_log:
            return []
        first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
        return [10.0**exponent for exponent in range(first, last + 1)]


def log_scale(values: np.ndarray) -> ColourScale:
    """Return a logarithmic scale that fits the values; far outliers are cut off.

    It spans at least one decade. If there is a 0, the scale begins half a decade lower: 0 has the lowest colour alone.
    """
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
    low, high = low - narrow - (0.5 if has_zero else 0.0), high + narrow
    return ColourScale(10.0**low, 10.0**high, True, (has_zero or low > least, high < greatest))


TEXT_PADDING = 2
"""Pixels around a text, because letters may begin before its position."""

Side = Literal["left", "middle", "right"]
"""Which end of a text is at the given position."""


class Letters:
    """Collects texts and draws them all at once, in black or in the colour of a mark.

    Args:
        width: width of the picture in pixels.
        height: its height.
    """

    def __init__(self, width: int, height: int) -> None:
        self._size = (width, height)
        self._drawn: dict[Mark | None, Image.Image] = {}

    def write(self, text: str, x: float, y: float, side: Side, mark: Mark | None = None) -> int:
        """Add a text for `stamp` to draw, and return its width in pixels.

        Args:
            text: one line.
            x: where the end of the text that `side` names is, in pixels from the left.
            y: where the line begins, in pixels from the top.
            side: which end of the text is at `x`.
            mark: the mark whose colour the text has. Left out: black.
        """
        width = round(text_width(text))
        left = round(x - {"left": 0, "middle": width / 2, "right": width}[side])
        if mark not in self._drawn:
            self._drawn[mark] = Image.new("L", self._size, 0)
        self._drawn[mark].paste(255, (left - TEXT_PADDING, round(y) - 2 - TEXT_PADDING), _written(text))
        return width

    def stamp(self, pixels: Pixels) -> None:
        """Draw the texts onto palette indices of shape (height, width), in place."""
        for mark, image in self._drawn.items():
            drawn = np.asarray(image)
            inked = drawn > 16
            darkness = drawn[inked] / 255
            if mark is None:
                pixels[inked] = np.rint(PAPER + darkness * (INK - PAPER)).astype(np.uint8)
            else:
                pixels[inked] = (MARKS[mark] + np.clip(np.rint((1 - darkness) * 8), 0, 7)).astype(np.uint8)


@functools.lru_cache(maxsize=4096)
def text_width(text: str) -> float:
    """Return the width of a text in pixels."""
    return font().getlength(text)


@functools.lru_cache(maxsize=1024)
def _written(text: str) -> Image.Image:
    """Draw a text by itself, with padding. Cached, because names of layers come again in each picture."""
    _, _, right, bottom = font().getbbox(text)
    image = Image.new("L", (round(right) + 2 * TEXT_PADDING, round(bottom) + 2 * TEXT_PADDING), 0)
    ImageDraw.Draw(image).text((TEXT_PADDING, TEXT_PADDING), text, fill=255, font=font())
    return image


LABEL_HEIGHT = 12
"""Height of a line of text in pixels."""

MIN_SPLIT_HEIGHT = 3 * LABEL_HEIGHT
"""A block at least this high has its parts labelled, not itself."""


@dataclass(frozen=True)
class Label:
    """The label of one row, or of a block of consecutive rows whose names begin alike.

    Args:
        text: the name.
        first: the index of its first row.
        last: the index of its last row.
        at: the middle of its line, in pixels from the top of the rows.
    """

    text: str
    first: int
    last: int
    at: float


def common_start(names: Sequence[str]) -> str:
    """Return the parts that all dotted names begin with, with a dot at the end; "" if there are none.

    The last part of a name is never among them.

    >>> common_start(["net.encoder.0", "net.encoder.1.norm"])
    'net.encoder.'
    """
    parts = [name.split(".")[:-1] for name in names]
    same = 0
    while parts and all(len(part) > same and part[same] == parts[0][same] for part in parts):
        same += 1
    return "".join(f"{word}." for word in parts[0][:same]) if parts else ""


def labels_of(names: Sequence[str], edges: Sequence[int], marked: Sequence[int]) -> list[Label]:
    """Place the labels of rows, from top to bottom, so that none overlaps another.

    Marked rows come first, as many as there is room for, if necessary with their label above or below the row. Then
    come the other rows and blocks, the tallest first.

    Args:
        names: the dotted name of each row.
        edges: where each row begins, in pixels, and where the last one ends; length rows + 1.
        marked: the indices of marked rows, most important first.
    """
    height = edges[-1]
    placed = _spread([_label(names[row], row, row, edges) for row in sorted(marked[: height // LABEL_HEIGHT])], height)
    others = [
        label
        for label in _blocks(names, edges, 0, len(names), 0)
        if label.first != label.last or label.first not in marked
    ]
    for label in sorted(others, key=lambda label: edges[label.first] - edges[label.last + 1]):
        if abs(label.at - height / 2) <= (height - LABEL_HEIGHT) / 2 + 1 and all(
            abs(label.at - other.at) >= LABEL_HEIGHT for other in placed
        ):
            placed.append(label)
    return sorted(placed, key=lambda label: label.at)


def shortened(text: str, width: int, text_width: Callable[[str], float]) -> str:
    """Shorten a dotted name from its front.

    Numbers and the last part are left out last, because they tell layers apart.

    Args:
        text: the name.
        width: its maximum width in pixels.
        text_width: returns the width of a text in pixels.

    >>> shortened("net.encoder.layers.7.linear1", 20, len)
    '…layers.7.linear1'
    >>> shortened("net.layers.7.attention.linear1", 16, len)
    '…7…linear1'
    """
    parts = text.split(".")
    inner = range(len(parts) - 1)
    left_out: set[int] = set()
    short = text
    for i in [*(i for i in inner if not parts[i].isdigit()), *(i for i in inner if parts[i].isdigit())]:
        if text_width(short) <= width:
            return short
        left_out.add(i)
        short = re.sub(r"[.…]*…[.…]*", "…", ".".join("…" if i in left_out else part for i, part in enumerate(parts)))
    letters = short.removeprefix("…")
    ends = (short, *(f"…{letters[cut:]}" for cut in range(1, len(letters) - 1)))
    return next((end for end in ends if text_width(end) <= width), letters[-1:])


def _blocks(names: Sequence[str], edges: Sequence[int], first: int, end: int, depth: int) -> list[Label]:
    """Return a label for each row from `first` up to `end` that stands alone or has room, and one for each other block.

    A block is consecutive rows whose names have the same first `depth + 1` parts.
    """
    labels: list[Label] = []

    def word(row: int) -> tuple[str, ...]:
        return tuple(names[row].split(".")[: depth + 1])

    for words, group in groupby(range(first, end), key=word):
        rows = list(group)
        start, stop = rows[0], rows[-1] + 1
        room = edges[stop] - edges[start]
        if len(rows) == 1:
            labels.append(_label(names[start], start, start, edges))
        elif room >= min(LABEL_HEIGHT * len(rows), MIN_SPLIT_HEIGHT) and any(
            names[row].count(".") > depth for row in rows
        ):
            labels += _blocks(names, edges, start, stop, depth + 1)
        else:
            labels.append(_label(".".join(words), start, stop - 1, edges))
    return labels


def _label(text: str, first: int, last: int, edges: Sequence[int]) -> Label:
    return Label(text, first, last, (edges[first] + edges[last + 1]) / 2)


def _spread(labels: Sequence[Label], height: int) -> list[Label]:
    """Move labels apart and into the picture, and keep their order."""
    at = [label.at for label in labels]
    for i in range(len(at)):
        at[i] = max(at[i], at[i - 1] + LABEL_HEIGHT if i else LABEL_HEIGHT / 2)
    for i in reversed(range(len(at))):
        at[i] = min(at[i], at[i + 1] - LABEL_HEIGHT if i + 1 < len(at) else height - LABEL_HEIGHT / 2)
    return [Label(label.text, label.first, label.last, y) for label, y in zip(labels, at, strict=True)]


MARK_WIDTH = 4
"""Width of the marks beside the rows."""

LABEL_GAP = 8
"""Pixels between labels and rows."""

NAME_WIDTHS = (66, 140)
"""Minimum and maximum width of the labels; below them are the unit and the colours of missing values."""

MAP_WIDTH = 350
"""Width of a picture: that of a card of the Images tab, which then shows it pixel by pixel."""

MAX_ROWS_HEIGHT = 153
"""Maximum height of all rows together, unless there are more rows than pixels. With caption and axis it fills a card of
the Time Series tab, which shrinks taller pictures.
"""

MIN_MARKED_HEIGHT = 7
"""Minimum height of a marked row if there are at most MAX_ENLARGED_MARKS of them; white lines above and below set it
off.
"""

MAX_ENLARGED_MARKS = 16

AXIS_HEIGHT = 38
"""Height of the axis and the colour bar."""


class HeatMapLayout(NamedTuple):
    """Where the parts of a heat map are, in pixels.

    Args:
        left: where its columns begin.
        width: the width of all columns together.
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
    scale: ColourScale | None = None,
    of: int | None = None,
) -> Picture:
    """Draw one quantity of many layers over a run, a row for each layer and a column for each step.

    Rows are as high as there is room for. With more than 720 of them, unmarked rows may share a pixel.

    Args:
        values: shape (rows, columns), float64; NaN for a missing value, infinite for one that was not finite.
        names: the dotted name of each row.
        steps: the step of each column.
        title: what is shown, for the caption.
        unit: the unit of the values, a word or two.
        marks: the rows to mark, by name.
        scale: the values that the colours stand for. Left out: a logarithmic scale that fits the values.
        of: number of layers in all. Left out: the number of rows.
    """
    scale = log_scale(values) if scale is None else scale
    kinds = {row: (marks or {})[name] for row, name in enumerate(names) if name in (marks or {})}
    start = common_start(names)
    short = [name.removeprefix(start) for name in names]
    edges = _edges(len(names), kinds)
    labels = labels_of(short, edges, sorted(kinds, key=lambda row: kinds[row] != "alarm"))
    unit = f"{unit}, log" if scale.is_log else unit
    longest = max(text_width(text) for text in (unit, *(label.text for label in labels)))
    left = round(np.clip(longest, *NAME_WIDTHS)) + 10 + LABEL_GAP + MARK_WIDTH
    layout = HeatMapLayout(left, MAP_WIDTH - left - MARK_WIDTH - 4, edges)
    letters = Letters(MAP_WIDTH, edges[-1] + AXIS_HEIGHT)
    pixels = np.full((edges[-1] + AXIS_HEIGHT, MAP_WIDTH), PAPER, np.uint8)
    _draw_cells(pixels, values, scale, layout, kinds)
    for label in labels:
        _draw_label(pixels, letters, label, layout, kinds.get(label.first) if label.first == label.last else None)
    _draw_steps(pixels, letters, steps, layout)
    _draw_bar(pixels, letters, values, scale, unit, layout)
    letters.stamp(pixels)
    where = f" in {start[:-1]}" if start else ""
    counts = [(list(kinds.values()).count(kind), kind) for kind in MARKS]
    marked = " and ".join(f"{count} by {kind}s" for count, kind in counts if count)
    all_of = f" of the {of}" if of not in (None, len(names)) else ""
    caption = f"{title} of {len(names)}{all_of} layers{where}{f', marked: {marked}' if marked else ''}"
    return Picture(pixels, caption, PALETTE)


def _edges(rows: int, kinds: Mapping[int, Mark]) -> list[int]:
    """Return the y coordinate in pixels at which each row begins, and at which the last one ends: rows + 1 numbers.

    A few marked rows are drawn higher than the others, so that they can be seen.

    Args:
        rows: number of rows.
        kinds: index of a marked row to its mark.
    """
    each = min(14.0, max(1.0, MAX_ROWS_HEIGHT / max(rows, 1))) if rows <= 720 else 720 / rows
    heights = np.full(rows, each)
    if len(kinds) <= MAX_ENLARGED_MARKS and each < MIN_MARKED_HEIGHT:
        if each > 1:  # the others make room
            heights[:] = max(1.0, (MAX_ROWS_HEIGHT - MIN_MARKED_HEIGHT * len(kinds)) / max(rows - len(kinds), 1))
        heights[list(kinds)] = MIN_MARKED_HEIGHT
    return [0, *np.rint(np.cumsum(heights)).astype(int).tolist()]


def _draw_cells(
    pixels: Pixels, values: np.ndarray, scale: ColourScale, layout: HeatMapLayout, kinds: Mapping[int, Mark]
) -> None:
    columns = values.shape[1]
    drawn = np.full(values.shape, MISSING, np.uint8)
    shares = scale.shares(values)
    has_value = np.isfinite(shares)
    drawn[has_value] = np.rint(shares[has_value] * (SHADES - 1)).astype(np.uint8)
    drawn[np.isinf(values)] = NOT_FINITE
    if columns <= layout.width:
        wide = drawn[:, np.arange(layout.width) * columns // layout.width]
    else:
        wide = drawn[:, np.rint(np.linspace(0, columns - 1, layout.width)).astype(int)]
        # A column that is left out may hold the only value that is not finite.
        row, column = np.nonzero(drawn == NOT_FINITE)
        wide[row, column * layout.width // columns] = NOT_FINITE
    heights = np.diff(layout.edges)
    pixels[: layout.edges[-1], layout.left : layout.left + layout.width] = np.repeat(wide, heights, axis=0)
    for marked, mark in kinds.items():
        top, bottom = layout.edges[marked], max(layout.edges[marked + 1], layout.edges[marked] + 1)
        if len(kinds) <= MAX_ENLARGED_MARKS:
            pixels[[top, bottom - 1], layout.left : layout.left + layout.width] = PAPER
            top, bottom = top + 1, bottom - 1
        pixels[top:bottom, layout.left - MARK_WIDTH : layout.left] = MARKS[mark]
        pixels[top:bottom, layout.left + layout.width : layout.left + layout.width + MARK_WIDTH] = MARKS[mark]


def _draw_label(pixels: Pixels, letters: Letters, label: Label, layout: HeatMapLayout, mark: Mark | None) -> None:
    right = layout.left - MARK_WIDTH - LABEL_GAP
    width = letters.write(
        shortened(label.text, right - 9, text_width), right, label.at - LABEL_HEIGHT / 2, "right", mark
    )
    top, bottom = layout.edges[label.first], layout.edges[label.last + 1]
    row = min((top + bottom) // 2, len(pixels) - 1)
    at, ink = min(round(label.at), layout.edges[-1] - 1), (INK + 8 if mark is None else MARKS[mark])
    if mark is not None:
        for i in range(6):  # a triangle that points at the name
            pixels[max(at - 3 + i // 2, 0) : at + 4 - i // 2, right - width - 8 + i] = ink
    if label.first != label.last:  # a bracket around the block
        pixels[top + 1 : max(bottom - 1, top + 2), right + 4] = ink
        pixels[at, right + 2 : right + 5] = ink
    else:
        pixels[at, right + 2 : right + 5] = ink
        pixels[min(at, row) : max(at, row) + 1, right + 5] = ink
        pixels[row, right + 5 : right + LABEL_GAP] = ink


def _draw_steps(pixels: Pixels, letters: Letters, steps: Sequence[int], layout: HeatMapLayout) -> None:
    """Draw the axis of steps: the first, the last and the quarter points, as far as there is room."""
    bottom, columns = layout.edges[-1], len(steps)
    letters.write("step", layout.left - MARK_WIDTH - 2, bottom + 3, "right")
    taken: list[tuple[float, float]] = []
    for column in dict.fromkeys([0, columns - 1, *(columns * k // 4 for k in (2, 1, 3))] if columns else []):
        x = layout.left + round((column + 0.5) * layout.width / columns)
        text = str(steps[column])
        half = text_width(text) / 2
        middle = min(max(x, layout.left + half), layout.left + layout.width + MARK_WIDTH - half)
        if all(middle + half + 8 < low or middle - half - 8 > high for low, high in taken):
            taken.append((middle - half, middle + half))
            letters.write(text, middle, bottom + 3, "middle")
            pixels[bottom : bottom + 3, min(x, MAP_WIDTH - 1)] = INK


def _draw_bar(
    pixels: Pixels, letters: Letters, values: np.ndarray, scale: ColourScale, unit: str, layout: HeatMapLayout
) -> None:
    """Draw the colour bar with its values, and the colours of missing and of non-finite values if there are any."""
    top = layout.edges[-1] + 18
    shades = np.arange(layout.width) * (SHADES - 1) // max(layout.width - 1, 1)
    pixels[top : top + 8, layout.left : layout.left + layout.width] = shades
    letters.write(unit, layout.left - MARK_WIDTH - 2, top - 3, "right")
    low, high = scale.ends
    ends: list[tuple[str, float, Side]] = [(low, layout.left, "left"), (high, layout.left + layout.width, "right")]
    taken = [(layout.left, layout.left + text_width(low)), (layout.left + layout.width - text_width(high), MAP_WIDTH)]
    for value in scale.decades():
        x = layout.left + float(scale.shares(np.array([value]))[0]) * (layout.width - 1)
        text, half = f"{value:.2g}", text_width(f"{value:.2g}") / 2
        pixels[top + 8 : top + 10, round(x)] = INK
        if all(x + half + 5 < a or x - half - 5 > b for a, b in taken):
            taken.append((x - half, x + half))
            ends.append((text, x, "middle"))
    for text, x, side in ends:
        letters.write(text, x, top + 9, side)
    x = 4
    for text, index, is_there in (
        ("none", MISSING, np.isnan(values).any()),
        ("NaN", NOT_FINITE, np.isinf(values).any()),  # there is no room for "NaN or infinite"
    ):
        if is_there and x + 11 + text_width(text) < layout.left:
            pixels[top + 11 : top + 19, x : x + 8] = index
            letters.write(text, x + 11, top + 9, "left")
            x += 17 + round(text_width(text))
