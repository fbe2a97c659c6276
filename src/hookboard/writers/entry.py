"""`Entry`: everything that one callback writes to the loggers at one step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from hookboard.images import Picture
from hookboard.measure import Reading
from hookboard.writers.table import Table


@dataclass(frozen=True)
class Entry:
    """Everything that one callback logs at one step, by tag.

    Args:
        texts: in Markdown.
        pages: self-contained, in HTML.
        records: the strings of each, see `hookboard.base.records`. Only the tab and the page read them, from event
            files; other loggers leave them out without a warning.
    """

    step: int
    scalars: Mapping[str, float] = field(default_factory=dict)
    histograms: dict[str, Reading] = field(default_factory=dict)
    pictures: dict[str, Picture] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    tables: dict[str, Table] = field(default_factory=dict)
    pages: dict[str, str] = field(default_factory=dict)
    records: dict[str, Sequence[bytes]] = field(default_factory=dict)


def joined(entries: Sequence[Entry]) -> Entry:
    """Return one entry with everything that several entries of one step have; of equal tags, the last."""
    parts = [part.name for part in fields(Entry) if part.name != "step"]
    union = {part: {tag: one for entry in entries for tag, one in getattr(entry, part).items()} for part in parts}
    return Entry(entries[0].step, **union)
