"""Which rows of a tall picture are named, and where: all of them if there is room, else blocks and the marked ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

LINE = 12
"""The height of a line of text, in pixels."""

SPLIT = 3 * LINE
"""A block with this much room is not named itself, but its parts are."""


@dataclass(frozen=True)
class Label:
    """The name of one row, or of a block of rows that begin with the same words.

    Args:
        text: the name.
        first: its first row.
        last: its last row.
        at: the middle of its line, in pixels from the top of the rows.
    """

    text: str
    first: int
    last: int
    at: float


def common_start(names: Sequence[str]) -> str:
    """The words that all dotted names begin with, with a dot behind them; "" if there are none.

    >>> common_start(["net.encoder.0", "net.encoder.1.norm"])
    'net.encoder.'
    """
    parts = [name.split(".")[:-1] for name in names]
    same = 0
    while parts and all(len(part) > same and part[same] == parts[0][same] for part in parts):
        same += 1
    return "".join(f"{word}." for word in parts[0][:same]) if parts else ""


def labels_of(names: Sequence[str], edges: Sequence[int], marked: Sequence[int]) -> list[Label]:
    """The labels of rows, from top to bottom, none over another.

    A marked row is always named, as long as there is room for all of them: its label moves aside if it has to. Of the
    others those that take much room are named first.

    Args:
        names: the dotted name of each row.
        edges: where each row begins, in pixels, and where the last one ends; length rows + 1.
        marked: the indices of marked rows, those that matter most first.
    """
    height = edges[-1]
    placed = _spread([_label(names[row], row, row, edges) for row in sorted(marked[: height // LINE])], height)
    others = [
        label
        for label in _blocks(names, edges, 0, len(names), 0)
        if label.first != label.last or label.first not in marked
    ]
    for label in sorted(others, key=lambda label: edges[label.first] - edges[label.last + 1]):
        if abs(label.at - height / 2) <= (height - LINE) / 2 + 1 and all(
            abs(label.at - other.at) >= LINE for other in placed
        ):
            placed.append(label)
    return sorted(placed, key=lambda label: label.at)


def shortened(text: str, width: int, length: Callable[[str], float]) -> str:
    """The text, with its middle left out where it is too long.

    Args:
        text: a name.
        width: the room for it, in pixels.
        length: gives the length of a text in pixels.

    >>> shortened("encoder.layers.7.linear1", 14, len)
    'enco…7.linear1'
    """
    if length(text) <= width:
        return text
    for kept in range(len(text) - 1, 1, -1):
        head = kept // 3
        short = f"{text[:head]}…{text[len(text) - kept + head :]}"
        if length(short) <= width:
            return short
    return text[-1:]


def _blocks(names: Sequence[str], edges: Sequence[int], first: int, end: int, depth: int) -> list[Label]:
    """A label for each row from `first` to `end` that has room for it, and else for small blocks."""
    labels: list[Label] = []

    def word(row: int) -> tuple[str, ...]:
        return tuple(names[row].split(".")[: depth + 1])

    for words, group in groupby(range(first, end), key=word):
        rows = list(group)
        start, stop = rows[0], rows[-1] + 1
        room = edges[stop] - edges[start]
        if len(rows) == 1:
            labels.append(_label(names[start], start, start, edges))
        elif room >= min(LINE * len(rows), SPLIT) and any(names[row].count(".") > depth for row in rows):
            labels += _blocks(names, edges, start, stop, depth + 1)
        else:
            labels.append(_label(".".join(words), start, stop - 1, edges))
    return labels


def _label(text: str, first: int, last: int, edges: Sequence[int]) -> Label:
    return Label(text, first, last, (edges[first] + edges[last + 1]) / 2)


def _spread(labels: Sequence[Label], height: int) -> list[Label]:
    """The same labels in the same order, moved apart and into the picture."""
    at = [label.at for label in labels]
    for i in range(len(at)):
        at[i] = max(at[i], at[i - 1] + LINE if i else LINE / 2)
    for i in reversed(range(len(at))):
        at[i] = min(at[i], at[i + 1] - LINE if i + 1 < len(at) else height - LINE / 2)
    return [Label(label.text, label.first, label.last, y) for label, y in zip(labels, at, strict=True)]
