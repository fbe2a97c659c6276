"""What is shown at a prompt: tables as text, and the names of files and of a notebook's cells."""

import os
import sys
from collections.abc import Sequence


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in plain text, with columns as wide as their longest cell.

    >>> print(text_table(["name", "mean"], [["conv1", "0.5"]]))
    name   mean
    conv1  0.5
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in [header, *rows])


def cell_of(path: str) -> str:
    """Return the cell of IPython whose code has this path, as in "In [5]"; "" for a file."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    named = getattr(getattr(shell, "compile", None), "format_code_name", lambda path: None)(path)
    return named[1].replace("[", " [") if named else ""


def file_name(path: str) -> str:
    """Return what a user is told of a file: its name, or the cell of IPython."""
    return cell_of(path) or os.path.basename(path)
