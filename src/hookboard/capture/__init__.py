"""The tensors themselves, kept without a Trainer."""

from hookboard.capture.block import Captured, capture
from hookboard.capture.captured import CapturedModule

__all__ = [
    "Captured",
    "CapturedModule",
    "capture",
]
