"""`histogram_sheets`: histograms as pictures, for loggers that have no histograms of their own."""

from collections import defaultdict

from PIL import Image

from hookboard.images import Picture, histogram_picture, sheet
from hookboard.writers.entry import Entry


def histogram_sheets(entry: Entry) -> dict[str, Image.Image]:
    """Return one picture for each kind of histogram, such as "activations": each picture is a request to a server."""
    drawn: dict[str, list[Picture]] = defaultdict(list)
    for tag, reading in entry.histograms.items():
        if reading.histogram is not None and len(reading.histogram.counts):
            kind, _, name = tag.partition("/")
            drawn[kind].append(histogram_picture(name, reading.histogram.counts, reading.histogram.edges))
    return {kind: sheet(pictures) for kind, pictures in drawn.items()}
