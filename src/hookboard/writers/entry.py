"""What is written at one step."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from hookboard.images import Picture
from hookboard.recording import Reading


@dataclass(frozen=True)
class Entry:
    """Everything that one callback logs at one step.

    Args:
        step: where on the logger's step axis.
        scalars: tag to value.
        histograms: tag to the reading that has the histogram.
        pictures: tag to picture.
        texts: tag to text in Markdown.
    """

    step: int
    scalars: dict[str, float] = field(default_factory=dict)
    histograms: dict[str, Reading] = field(default_factory=dict)
    pictures: dict[str, Picture] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)


def entry_of(readings: Iterable[Reading], step: int) -> Entry:
    """The readings of one step under their tags."""
    entry = Entry(step)
    for reading in readings:
        site, stage = reading.site, reading.stage
        entry.scalars.update({site.scalar_tag(name, stage): value for name, value in reading.statistics.items()})
        if reading.histogram is not None:
            entry.histograms[site.histogram_tag(stage)] = reading
    return entry
