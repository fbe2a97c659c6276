"""`Entry`: everything that is written at one step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from hookboard.images import Picture
from hookboard.recording import Reading, Readings
from hookboard.writers.table import Table

Layout = dict[str, dict[str, list[Any]]]
"""Category to title to a chart: its kind, "Margin" or "Multiline", and a list of its tags."""


@dataclass(frozen=True)
class Entry:
    """Everything that one callback logs at one step.

    Args:
        step: the step on the logger's axis.
        scalars: tag to value.
        histograms: tag to a reading with a histogram.
        pictures: tag to picture.
        texts: tag to text in Markdown.
        tables: tag to table.
        layout: charts of several scalars, for TensorBoard's custom scalars. A run has one layout: it is written only
            if the run has none yet, such as the user's own.
        records: tag to the strings of a record, see `hookboard.record`. They are for the tab in TensorBoard alone:
            other loggers leave them out without a word.
    """

    step: int
    scalars: Mapping[str, float] = field(default_factory=dict)
    histograms: dict[str, Reading] = field(default_factory=dict)
    pictures: dict[str, Picture] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    tables: dict[str, Table] = field(default_factory=dict)
    layout: Layout = field(default_factory=dict)
    records: dict[str, Sequence[bytes]] = field(default_factory=dict)


def entry_of(readings: Readings, step: int, others: Mapping[str, float] | None = None) -> Entry:
    """Return the statistics and histograms of some readings, by tag.

    Args:
        readings: the readings.
        step: on the logger's axis.
        others: scalars beside them.
    """
    named = _named(readings)
    numbers = readings.statistics.values.ravel()[named.picked].tolist()
    scalars = {**dict(zip(named.scalars, numbers, strict=True)), **(others or {})}
    drawn = zip(named.histograms, readings.histograms, strict=True)
    return Entry(step, scalars, {tag: readings.at(row) for row, (tag, one) in enumerate(drawn) if one is not None})


class _Named(NamedTuple):
    """The tags of some readings.

    Args:
        scalars: the tags of statistics.
        picked: which values of the table they belong to, row after row.
        histograms: of each site the tag of its histogram.
    """

    scalars: list[str]
    picked: np.ndarray
    histograms: list[str]


def _named(readings: Readings) -> _Named:
    """Return the tags of some readings: made once as long as sites and statistics stay the same."""
    sites, stage, (names, _, is_there) = readings.places.sites, readings.stage, readings.statistics

    def make() -> _Named:
        tags = [tag for site in sites for tag in site.scalar_tags(names, stage)]
        # Two sites may share a tag: then the last one has it.
        picked = {tags[place]: place for place in np.flatnonzero(is_there).tolist()}
        places = np.array([*picked.values()], dtype=np.intp)
        return _Named([*picked], places, [site.histogram_tag(stage) for site in sites])

    named: _Named = readings.places.once("tags", (stage, names, is_there.tobytes()), make)
    return named
