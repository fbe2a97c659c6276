"""`Table`: rows of text, which loggers take as a table or as Markdown."""

import re
from dataclasses import dataclass

_SPECIAL = re.compile(r"[&<>|`*\[\]\\~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
"""What Markdown or HTML would take for more than a character. An underscore within a word is safe."""


@dataclass(frozen=True)
class Table:
    """A table of plain texts.

    Args:
        columns: the name of each column.
        rows: the cells of each row, as many as there are columns; without rows there is no table, only the sentences.
        above: what stands above it.
        below: what stands below it.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    above: str = ""
    below: str = ""


def markdown(table: Table) -> str:
    """The table in Markdown. No cell can break it, whatever it holds.

    >>> print(markdown(Table(("layer", "why"), (("a|b", "x <y>"),), above="One.")))
    One.
    <BLANKLINE>
    | layer | why |
    |---|---|
    | a&#124;b | x &#60;y&#62; |
    """
    lines = [_line(table.columns), "|" + "---|" * len(table.columns), *map(_line, table.rows)] if table.rows else []
    return "\n\n".join(filter(None, [escaped(table.above), "\n".join(lines), escaped(table.below)]))


def escaped(text: str) -> str:
    """The text in one line, so that Markdown shows it as it is."""
    return _SPECIAL.sub(lambda found: f"&#{ord(found[0])};", " ".join(text.split()))


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(map(escaped, cells))} |"
