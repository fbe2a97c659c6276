"""`capture`: keep the tensors of modules without a Trainer, for example in a notebook."""

from hookboard.capturing.capture import Captured, CapturedModule, capture

__all__ = [
    "Captured",
    "CapturedModule",
    "capture",
]
