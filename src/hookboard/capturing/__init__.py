"""`capture`: keep the tensors of modules without a Trainer, for example in a notebook."""

from hookboard.capturing.captured import Captured, CapturedModule, capture

__all__ = [
    "Captured",
    "CapturedModule",
    "capture",
]
