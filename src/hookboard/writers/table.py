"""`Table`: rows of text, which loggers take as a table or in Markdown."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_SPECIAL = re.compile(r"[&<>|`*\[\]\\~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
"""Characters with a meaning in Markdown or HTML. An underscore within a word has none."""


@dataclass(frozen=True)
class Table:
    """A table of cells in plain text, and as Markdown, with the sentences around it."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text: str


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown, with cells in Markdown without line breaks; see `escaped`.

    >>> print(markdown(["layer", "why"], [["net.0", escaped("x < y")]]))
    | layer | why |
    |---|---|
    | net.0 | x &#60; y |
    """
    return "\n".join([_line(columns), "|" + "---|" * len(columns), *map(_line, rows)])


def escaped(text: str) -> str:
    """Return the text in one line, escaped so that Markdown shows it literally, also within a table."""
    return _SPECIAL.sub(lambda found: f"&#{ord(found[0])};", " ".join(text.split()))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
