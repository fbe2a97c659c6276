"""`Entry`: everything that one callback writes to the loggers at one step; `TextTable`: rows of text in it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields

from hookboard.images.picture import Picture
from hookboard.measure.row import Reading

_SPECIAL = re.compile(r"[&<>|`*\[\]\\~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
"""Characters with a meaning in Markdown or HTML. An underscore within a word has none."""


@dataclass(frozen=True)
class TextTable:
    """A table of cells in plain text, and as Markdown, with the sentences around it."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text: str


@dataclass(frozen=True)
class Entry:
    """Everything that one callback logs at one step, by tag."""

    step: int
    scalars: Mapping[str, float] = field(default_factory=dict)
    histograms: dict[str, Reading] = field(default_factory=dict)
    pictures: dict[str, Picture] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)  # in Markdown
    tables: dict[str, TextTable] = field(default_factory=dict)
    pages: dict[str, str] = field(default_factory=dict)  # self-contained, in HTML
    records: dict[str, Sequence[bytes]] = field(default_factory=dict)  # see `base/records.py`; for event files alone

    def files(self) -> dict[str, str]:
        """Return the texts, tables and pages as files, by name, for loggers that keep files."""
        texts = {**self.texts, **{tag: table.text for tag, table in self.tables.items()}}
        return {f"{tag}.md": text for tag, text in texts.items()} | {f"{t}.html": p for t, p in self.pages.items()}


def joined(entries: Sequence[Entry]) -> Entry:
    """Return one entry with everything that several entries of one step have; of equal tags, the last."""
    parts = [part.name for part in fields(Entry) if part.name != "step"]
    union = {part: {tag: one for entry in entries for tag, one in getattr(entry, part).items()} for part in parts}
    return Entry(entries[0].step, **union)


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown, with cells in Markdown without line breaks; see `escaped`.

    >>> print(markdown(["layer", "why"], [["net.0", escaped("x < y")]]))
    | layer | why |
    |---|---|
    | net.0 | x &#60; y |
    """
    head, *lines = (f"| {' | '.join(cells)} |" for cells in (columns, *rows))
    return "\n".join([head, "|" + "---|" * len(columns), *lines])


def escaped(text: str) -> str:
    """Return the text in one line, escaped so that Markdown shows it literally, also within a table."""
    return _SPECIAL.sub(lambda found: f"&#{ord(found[0])};", " ".join(text.split()))
