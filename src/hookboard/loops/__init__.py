"""Who calls a callback at which point of a run, and what stands between it and the run: shield, worker, budget."""

from hookboard.loops.budget import is_due, is_due_now
from hookboard.loops.callback import HookboardCallback
from hookboard.loops.callback_methods import NothingToShowError
from hookboard.loops.stage_state import Selection, StageState, listed_gaps, names_in
from hookboard.loops.trainer import (
    callbacks_of,
    is_accumulating,
    is_alone,
    log_every_n_steps,
    logged_step,
    on_device,
)

__all__ = [
    "HookboardCallback",
    "NothingToShowError",
    "Selection",
    "StageState",
    "callbacks_of",
    "is_accumulating",
    "is_alone",
    "is_due",
    "is_due_now",
    "listed_gaps",
    "log_every_n_steps",
    "logged_step",
    "names_in",
    "on_device",
]
