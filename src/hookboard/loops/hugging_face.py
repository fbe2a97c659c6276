"""`for_transformers`: callbacks of hookboard in Hugging Face's Trainer; and what `hookboard run` gives to Trainers."""

from collections.abc import Callable, Sequence
from typing import Any

from lightning.pytorch.loggers import Logger
from torch.utils.tensorboard import SummaryWriter

from hookboard.loops.bare import callbacks_in, loggers_in
from hookboard.loops.callback import HookboardCallback


def for_transformers(
    callbacks: HookboardCallback[Any] | Sequence[HookboardCallback[Any]],
    loggers: SummaryWriter | Logger | Sequence[SummaryWriter | Logger] | None = None,
) -> Any:
    """Make a callback for Hugging Face's Trainer, in which callbacks log what they would log in a Lightning Trainer.

    The cadence of callbacks without an `every_n_steps` of their own is `logging_steps`. The evaluations of
    `eval_strategy` are what validations are in a Lightning Trainer. What needs the `training_step` of a LightningModule
    is left out (see `watch`). If training fails, call `close()` on the returned callback, because Hugging Face's
    Trainer does not tell callbacks about errors.

    Args:
        callbacks: A hookboard callback, or several.
        loggers: What to write to: a torch `SummaryWriter`, a Lightning logger, or several. Default: TensorBoard files
            in the folder `hookboard` inside the Trainer's `output_dir`.

    Returns:
        A `TrainerCallback`, for `Trainer(callbacks=[...])` of transformers or `trainer.add_callback`.

    Raises:
        ModuleNotFoundError: transformers is not installed.
        ValueError: an argument is of the wrong kind.
    """
    from hookboard.loops.transformers_callback import TransformersCallback  # takes seconds to import

    return TransformersCallback(callbacks_in(callbacks), None if loggers is None else loggers_in(loggers))


def give_to_lightning(trainer: Any, kind: type, make: Callable[[], HookboardCallback[Any]]) -> bool:
    """Add a callback to a Trainer of Lightning, unless it has one of this kind; return whether it was added."""
    if any(isinstance(callback, kind) for callback in trainer.callbacks):
        return False
    trainer.callbacks.insert(0, make())  # Lightning has those that save checkpoints last
    return True


def give_to_transformers(trainer: Any, kind: type, make: Callable[[], HookboardCallback[Any]]) -> bool:
    """Add a callback to a Trainer of Hugging Face, unless hookboard has one there; return whether it was added."""
    from hookboard.loops.transformers_callback import TransformersCallback

    if any(isinstance(callback, TransformersCallback) for callback in trainer.callback_handler.callbacks):
        return False
    trainer.add_callback(for_transformers(make()))
    return True
