"""The tensors themselves, kept at a prompt."""

from hookboard.capture.block import capture
from hookboard.capture.captured import Captured
from hookboard.capture.module import CapturedModule

__all__ = [
    "Captured",
    "CapturedModule",
    "capture",
]
