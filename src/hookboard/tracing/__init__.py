"""?"""

from hookboard.tracing.audit import audit
from hookboard.tracing.bad_operation import Program
from hookboard.tracing.batch_targets import Targets, targets_in
from hookboard.tracing.black_box import BlackBox
from hookboard.tracing.built_in import RULES, STEP
from hookboard.tracing.explain import late_event
from hookboard.tracing.live_step import LiveStep
from hookboard.tracing.modes import Modes
from hookboard.tracing.optimizing import Unfrozen, findings_of_optimizers
from hookboard.tracing.scheduling import findings_of_schedules
from hookboard.tracing.stale import StaleGradients
from hookboard.tracing.step import CannotRunAgainError, loss_of_step, replaced, undisturbed

__all__ = [
    "RULES",
    "STEP",
    "BlackBox",
    "CannotRunAgainError",
    "LiveStep",
    "Modes",
    "Program",
    "StaleGradients",
    "Targets",
    "Unfrozen",
    "audit",
    "findings_of_optimizers",
    "findings_of_schedules",
    "late_event",
    "loss_of_step",
    "replaced",
    "targets_in",
    "undisturbed",
]
