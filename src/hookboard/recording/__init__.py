"""From tensors of a step to readings: measure them, merge their rows over calls and ranks, bring them to the host."""

from hookboard.recording.packet import sent, sent_together
from hookboard.recording.readings import FORMS, Places, Reading, Readings
from hookboard.recording.recorder import Recorder

__all__ = ["FORMS", "Places", "Reading", "Readings", "Recorder", "sent", "sent_together"]
