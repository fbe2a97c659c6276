"""Reads one training step, from the batch to the loss, and says what in it cannot work."""

from hookboard.auditing.rules import Finding
from hookboard.auditing.run import audit, follow

__all__ = ["Finding", "audit", "follow"]
