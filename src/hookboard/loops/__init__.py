"""Who calls a callback at which point of a run, and what stands between it and the run: shield, worker, budget."""

from hookboard.loops.bare import watch
from hookboard.loops.budget import is_due, is_due_now
from hookboard.loops.callback import HookboardCallback
from hookboard.loops.callback_methods import NothingToShowError
from hookboard.loops.loop import Loop
from hookboard.loops.stage_state import Selection, StageState, listed_gaps, names_in

__all__ = [
    "HookboardCallback",
    "Loop",
    "NothingToShowError",
    "Selection",
    "StageState",
    "is_due",
    "is_due_now",
    "listed_gaps",
    "names_in",
    "watch",
]
