"""Repeats a call of a model, or a training step, without leaving a trace: for pictures and the search for NaN."""

from hookboard.replay.step import (
    GENERATORS,
    CannotRunAgainError,
    RandomState,
    loss_in,
    run_training_step,
    schedules_apart,
    step_again,
    step_apart,
    step_before,
    undisturbed,
)
from hookboard.replay.variables import Variables

__all__ = [
    "GENERATORS",
    "CannotRunAgainError",
    "RandomState",
    "Variables",
    "loss_in",
    "run_training_step",
    "schedules_apart",
    "step_again",
    "step_apart",
    "step_before",
    "undisturbed",
]
