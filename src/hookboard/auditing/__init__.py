"""Traces one training step, from the batch to the loss, and finds faults in its code."""

from hookboard.auditing.audit import audit
from hookboard.auditing.batch_targets import Targets, targets_in
from hookboard.auditing.built_in import RULES, STEP
from hookboard.auditing.live_step import LiveStep
from hookboard.auditing.modes import Modes
from hookboard.auditing.optimizing import Unfrozen, findings_of_optimizers
from hookboard.auditing.scheduling import findings_of_schedules
from hookboard.auditing.stale import StaleGradients

__all__ = [
    "RULES",
    "STEP",
    "LiveStep",
    "Modes",
    "StaleGradients",
    "Targets",
    "Unfrozen",
    "audit",
    "findings_of_optimizers",
    "findings_of_schedules",
    "targets_in",
]
