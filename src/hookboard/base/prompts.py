"""What objects show at a prompt and in a cell of a notebook: tables as text and as HTML.

The HTML needs no network and no script. Its colours follow the page around it, light or dark, and all text is escaped.
"""

import base64
import html
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

MAX_ROWS = 100
"""Maximum number of rows of an HTML table."""

_LINE = "1px solid rgba(128,128,128,.35)"
_CELL = f"text-align:left;vertical-align:middle;padding:3px 8px 3px 0;border-bottom:{_LINE}"

MAX_UNBROKEN_CHARS = 24
"""Cells with more characters than this may be broken anywhere, such as long names; numbers and shapes stay whole."""


class Markup(str):
    """HTML that is put into other HTML as it is; any other text is escaped."""


def escaped_html(text: str) -> Markup:
    """Return the HTML of a text; `Markup` stays as it is.

    >>> escaped_html("<b>"), escaped_html(Markup("<b>"))
    ('&lt;b&gt;', '<b>')
    """
    return text if isinstance(text, Markup) else Markup(html.escape(text))


def image_html(data: bytes, mime: str, alt: str, style: str = "") -> Markup:
    """Return an `img` element that holds the encoded image."""
    source = f"data:{mime};base64,{base64.b64encode(data).decode()}"
    return Markup(f'<img src="{source}" alt="{html.escape(alt)}" style="{style}">')


def table_html(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    """Return an HTML table with at most MAX_ROWS rows; if there are more, a line below it tells how many."""
    lines = [_row(header, "th"), *(_row(row, "td") for row in rows[:MAX_ROWS])]
    rest = f"<div>and {len(rows) - MAX_ROWS} more</div>" if len(rows) > MAX_ROWS else ""
    return Markup(f'<table style="border-collapse:collapse;margin:0">{"".join(lines)}</table>{rest}')


def _row(cells: Iterable[str], tag: str) -> str:
    return f"<tr>{''.join(_cell(cell, tag) for cell in cells)}</tr>"


def _cell(text: str, tag: str) -> str:
    is_short = isinstance(text, Markup) or len(text) <= MAX_UNBROKEN_CHARS
    wrap = "" if tag == "th" else "white-space:nowrap" if is_short else "overflow-wrap:anywhere;min-width:10em"
    return f'<{tag} style="{_CELL};{wrap}">{escaped_html(text)}</{tag}>'


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

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)

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
