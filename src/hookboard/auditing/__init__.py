"""Traces one training step, from the batch to the loss, and finds faults in its code."""

from hookboard.auditing.audit import audit
from hookboard.auditing.batch_targets import Targets, targets_in
from hookboard.auditing.first_step import FirstStep, read_first_step
from hookboard.auditing.optimizing import findings_of_optimizers
from hookboard.auditing.rules import Finding
from hookboard.auditing.stale import StaleGradients

__all__ = [
    "Finding",
    "FirstStep",
    "StaleGradients",
    "Targets",
    "audit",
    "findings_of_optimizers",
    "read_first_step",
    "targets_in",
]
