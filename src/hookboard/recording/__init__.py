"""Measures the tensors of a step, and returns a reading for each site on the host.

Each tensor becomes a row (numbers that can be merged). `Recorder.flush` collects all rows in one packet, copies it to
the host, merges it over the ranks, and makes the readings. From these, callbacks make the entry that loggers write.
"""

from hookboard.recording.packet import sent_together
from hookboard.recording.readings import Places, Reading, ReadingList, Readings
from hookboard.recording.recorder import Recorder

__all__ = ["Places", "Reading", "ReadingList", "Readings", "Recorder", "sent_together"]
