"""Calls a model or runs a training step once more, and puts back the model, the optimizers and the random state."""

from hookboard.replay.step import (
    CannotRunAgainError,
    call_training_step,
    loss_in,
    loss_of_step,
    replaced,
    undisturbed,
)

__all__ = [
    "CannotRunAgainError",
    "call_training_step",
    "loss_in",
    "loss_of_step",
    "replaced",
    "undisturbed",
]
