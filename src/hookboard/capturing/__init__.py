"""`capture`: keep the tensors of modules without a Trainer, for example in a notebook."""

from hookboard.capturing.block import capture
from hookboard.capturing.captured import Captured
from hookboard.capturing.module import CapturedModule

__all__ = [
    "Captured",
    "CapturedModule",
    "capture",
]
