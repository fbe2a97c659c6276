"""The base class of all callbacks, and the loops that call it: of a Lightning Trainer, and of a loop without one.

It also keeps errors away from training, and saves what callbacks remember in checkpoints (`callback.py`).
"""

from hookboard.loops.bare import BareLoop, watch
from hookboard.loops.callback import HookboardCallback, NothingToShowError, why_no_step
from hookboard.loops.hugging_face import for_transformers, give_to_lightning, give_to_transformers
from hookboard.loops.loop import Loop
from hookboard.loops.stage_state import Selection, StageState, is_due, listed_gaps, names_in

__all__ = [
    "BareLoop",
    "HookboardCallback",
    "Loop",
    "NothingToShowError",
    "Selection",
    "StageState",
    "for_transformers",
    "give_to_lightning",
    "give_to_transformers",
    "is_due",
    "listed_gaps",
    "names_in",
    "watch",
    "why_no_step",
]
