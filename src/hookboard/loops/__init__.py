"""Who calls a callback at which point of a run, and what stands between it and the run: shield, worker, budget."""

from hookboard.loops.budget import is_due, is_due_now
from hookboard.loops.duties import NothingToShowError
from hookboard.loops.life import Life
from hookboard.loops.trainer import (
    callbacks_of,
    is_accumulating,
    is_alone,
    log_every_n_steps,
    logged_step,
)
from hookboard.loops.watch import Selection, Watch, listed_gaps, names_in

__all__ = [
    "Life",
    "NothingToShowError",
    "Selection",
    "Watch",
    "callbacks_of",
    "is_accumulating",
    "is_alone",
    "is_due",
    "is_due_now",
    "listed_gaps",
    "log_every_n_steps",
    "logged_step",
    "names_in",
]
