"""Traces one training step, from the batch to the loss, and finds faults in its code."""

from hookboard.auditing.audit import audit
from hookboard.auditing.first_step import FirstStep, read_first_step
from hookboard.auditing.rules import Finding
from hookboard.auditing.stale import StaleGradients

__all__ = ["Finding", "FirstStep", "StaleGradients", "audit", "read_first_step"]
