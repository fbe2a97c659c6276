"""From tensors of a step to readings: measure them, merge their rows over calls and ranks, bring them to the host."""

from hookboard.recording.kept import FORMS
from hookboard.recording.parts import Arrived, Sent
from hookboard.recording.reading import Reading
from hookboard.recording.readings import Numbers, Readings, Results
from hookboard.recording.recorder import Recorder
from hookboard.recording.sending import sent, sent_together

__all__ = [
    "FORMS",
    "Arrived",
    "Numbers",
    "Reading",
    "Readings",
    "Recorder",
    "Results",
    "Sent",
    "sent",
    "sent_together",
]
