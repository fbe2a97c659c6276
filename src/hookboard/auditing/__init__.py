"""Reads one training step, from the batch to the loss, and says what in it cannot work."""

from hookboard.auditing.audit import FirstStep, audit
from hookboard.auditing.rules import Finding

__all__ = ["Finding", "FirstStep", "audit"]
