"""Gives a Trainer that a script has made a callback more, for `hookboard run`."""

from collections.abc import Callable
from typing import Any

from hookboard.loops.callback import HookboardCallback
from hookboard.loops.hugging_face import for_transformers


def give_to_lightning(trainer: Any, kind: type, make: Callable[[], HookboardCallback[Any]]) -> bool:
    """Add a callback to a Trainer of Lightning, unless it has one of this kind; return whether it was added."""
    if any(isinstance(one, kind) for one in trainer.callbacks):
        return False
    trainer.callbacks.insert(0, make())  # Lightning has those that save checkpoints last
    return True


def give_to_transformers(trainer: Any, kind: type, make: Callable[[], HookboardCallback[Any]]) -> bool:
    """Add a callback to a Trainer of Hugging Face, unless hookboard has one there; return whether it was added."""
    from hookboard.loops.transformers_callback import TransformersCallback

    if any(isinstance(one, TransformersCallback) for one in trainer.callback_handler.callbacks):
        return False
    trainer.add_callback(for_transformers(make()))
    return True
