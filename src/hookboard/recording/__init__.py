"""Measures the tensors of a step, and returns a reading for each site on the host.

A tensor becomes a row (numbers that can be merged), all rows of a flush one packet, which is copied to the host and
merged over the ranks, and a packet the readings, from which callbacks make the entry that loggers write.
"""

from hookboard.recording.packet import sent, sent_together
from hookboard.recording.readings import FORMS, Places, Reading, ReadingList, Readings
from hookboard.recording.recorder import Recorder

__all__ = ["FORMS", "Places", "Reading", "ReadingList", "Readings", "Recorder", "sent", "sent_together"]
