"""Reads one training step, from the batch to the loss, and says what in it cannot work."""

from hookboard.auditing.audit import audit
from hookboard.auditing.first_step import read_first_step

__all__ = ["audit", "read_first_step"]
