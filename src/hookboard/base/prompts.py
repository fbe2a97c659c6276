"""What objects show at a prompt and in a cell of a notebook: tables as text and as HTML.

The HTML needs no network and no script, and all text is escaped.
"""

import base64
import html
import os
import sys
from collections.abc import Callable, Sequence

MAX_ROWS = 100
"""Maximum number of rows of an HTML table."""


class Markup(str):
    """HTML that is put into a table as it is; any other text is escaped."""


def image_html(data: bytes, mime: str, alt: str, style: str = "") -> Markup:
    """Return an `img` element that holds the encoded image."""
    source = f"data:{mime};base64,{base64.b64encode(data).decode()}"
    return Markup(f'<img src="{source}" alt="{html.escape(alt)}" style="{style}">')


def table_html(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return an HTML table with at most MAX_ROWS rows; if there are more, a line below it tells how many."""
    lines = [_row(header, "th"), *(_row(row, "td") for row in rows[:MAX_ROWS])]
    rest = f"<div>and {len(rows) - MAX_ROWS} more</div>" if len(rows) > MAX_ROWS else ""
    return f"<table>{''.join(lines)}</table>{rest}"


def _row(cells: Sequence[str], tag: str) -> str:
    escaped = (cell if isinstance(cell, Markup) else html.escape(cell) for cell in cells)
    joined = "".join(f'<{tag} style="text-align:left">{cell}</{tag}>' for cell in escaped)
    return f"<tr>{joined}</tr>"


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in plain text, with columns as wide as their longest cell.

    >>> print(text_table(["name", "mean"], [["conv1", "0.5"]]))
    name   mean
    conv1  0.5
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in [header, *rows])


class ShownText(str):
    """A text that is printed as it is at a prompt, and shown as HTML in a notebook."""

    as_html: Callable[[], str]

    def __new__(cls, text: str, as_html: Callable[[], str]) -> "ShownText":
        """Make the text, which a str does before its `__init__`."""
        self = super().__new__(cls, text)
        self.as_html = as_html
        return self

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return self.as_html()


def cell_of(path: str) -> str:
    """Return the cell of IPython whose code has this path, as in "In [5]"; "" for a file."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    named = getattr(getattr(shell, "compile", None), "format_code_name", lambda path: None)(path)
    return named[1].replace("[", " [") if named else ""


def file_name(path: str) -> str:
    """Return what a user is told of a file: its name, or the cell of IPython."""
    return cell_of(path) or os.path.basename(path)
