"""Reads one training step, from the batch to the loss, and says what in it cannot work."""

from hookboard.audit.audit import audit, follow
from hookboard.audit.rules import Finding

__all__ = ["Finding", "audit", "follow"]
