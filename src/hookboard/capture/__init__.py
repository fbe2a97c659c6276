"""`capture`: keep the tensors of modules without a Trainer, for example in a notebook."""

from hookboard.capture.block import capture
from hookboard.capture.captured import Captured
from hookboard.capture.module import CapturedModule

__all__ = [
    "Captured",
    "CapturedModule",
    "capture",
]
