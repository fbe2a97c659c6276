"""The rows of all sites of a step, merged, as readings on the host."""

from hookboard.recording.reading import Reading
from hookboard.recording.recorder import Recorder

__all__ = [
    "Reading",
    "Recorder",
]
