"""Calls a model or runs a training step once more, and restores everything that this changed."""

from hookboard.replay.random_state import GENERATORS, RandomState
from hookboard.replay.restorable import CannotRunAgainError, RestorableCheck
from hookboard.replay.step import call_training_step, loss_in, loss_of_step, replaced, run_step, undisturbed

__all__ = [
    "GENERATORS",
    "CannotRunAgainError",
    "RandomState",
    "RestorableCheck",
    "call_training_step",
    "loss_in",
    "loss_of_step",
    "replaced",
    "run_step",
    "undisturbed",
]
