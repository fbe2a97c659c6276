"""Calls a model once more without a trace, for pictures and for the search for NaN."""

from hookboard.replay.step import GENERATORS, CannotRunAgainError, RandomState, step_again, undisturbed

__all__ = [
    "GENERATORS",
    "CannotRunAgainError",
    "RandomState",
    "step_again",
    "undisturbed",
]
