"""Reads one training step, from the batch to the loss, and says what in it cannot work."""

from hookboard.auditing.audit import audit

__all__ = ["audit"]
