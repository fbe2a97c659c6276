"""Follows a training step from the batch to the loss, asks questions of it, and finds its first NaN.

`program.py` records the calls, and `reading.py` asks each question of them: in a fit by `live_step.py`, in a step of
its own by `audit.py`. `black_box.py` notices a NaN or Inf, and `bad_operation.py` finds in the graph of the loss where
it came from. `step.py` repeats a step and puts the model back.
"""

from hookboard.tracing.adapters import Adapter
from hookboard.tracing.audit import Findings, audit
from hookboard.tracing.bad_operation import Program
from hookboard.tracing.batch_targets import Targets, targets_in
from hookboard.tracing.black_box import BlackBox
from hookboard.tracing.built_in import RULES, STEP
from hookboard.tracing.experts import is_choice, tokens_of_experts
from hookboard.tracing.explain import late_event
from hookboard.tracing.live_step import LiveStep
from hookboard.tracing.loss_rows import row_counts_of, worst_rows_of
from hookboard.tracing.modes import Modes
from hookboard.tracing.optimizing import Unfrozen, findings_of_optimizers
from hookboard.tracing.scheduling import findings_of_schedules
from hookboard.tracing.stale import StaleGradients
from hookboard.tracing.step import CannotRunAgainError, loss_of_step, replaced, undisturbed

__all__ = [
    "RULES",
    "STEP",
    "Adapter",
    "BlackBox",
    "CannotRunAgainError",
    "Findings",
    "LiveStep",
    "Modes",
    "Program",
    "StaleGradients",
    "Targets",
    "Unfrozen",
    "audit",
    "findings_of_optimizers",
    "findings_of_schedules",
    "is_choice",
    "late_event",
    "loss_of_step",
    "replaced",
    "row_counts_of",
    "targets_in",
    "tokens_of_experts",
    "undisturbed",
    "worst_rows_of",
]
