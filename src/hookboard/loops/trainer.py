"""Everything that callbacks ask of a Trainer, the only file with private names of Lightning."""

from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.trainer.states import TrainerFn, TrainerStatus
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from hookboard.messages import ask_for_rank

ask_for_rank(lambda: getattr(rank_zero_only, "rank", 0) == 0)


def callbacks_of(trainer: Trainer) -> list[Callback]:
    """Return all callbacks of the Trainer, in their order."""
    return trainer.callbacks  # type: ignore[attr-defined, no-any-return]  # set outside its __init__


def is_running(trainer: Trainer) -> bool:
    """Return whether the Trainer is in the midst of a run."""
    return trainer.state.status == TrainerStatus.RUNNING


def logged_step(trainer: Trainer) -> int:
    """Return the value that Lightning's loggers write for the optimizer step that the current batch belongs to.

    `global_step` is not it: it counts every optimizer's step, and has already moved on when a batch ends.
    """
    return trainer.fit_loop.epoch_loop._batches_that_stepped


def batch_to_repeat(trainer: Trainer) -> tuple[int, int] | None:
    """Return the optimizer step and the index of the running batch if a fit continued from now runs it again.

    None if it has ended, even if callbacks have yet to hear of that.
    """
    progress: Any = trainer.fit_loop.epoch_loop.batch_progress.current
    return (logged_step(trainer), progress.ready - 1) if progress.processed < progress.ready else None


def on_device(trainer: Trainer, batch: Any) -> Any:
    """Return a batch as `training_step` gets it: converted, moved, and changed by the module's hooks for that."""
    batch = trainer.precision_plugin.convert_input(batch)
    batch = trainer.lightning_module._on_before_batch_transfer(batch, dataloader_idx=0)
    return trainer.strategy.batch_to_device(batch, dataloader_idx=0)


def is_accumulating(trainer: Trainer) -> bool:
    """Return whether the optimizer step that the current batch belongs to is still to come."""
    return trainer.fit_loop.epoch_loop._should_accumulate()


def running_stage(trainer: Trainer) -> str:
    """Return the stage that runs now, in Lightning's terms: one of `Stage`, or `sanity_check`."""
    stage = trainer.state.stage
    assert stage is not None, "no loop runs"
    return stage.value


def log_every_n_steps(trainer: Trainer) -> int:
    """Return the Trainer's `log_every_n_steps`; 0 means that it logs nothing."""
    return trainer.log_every_n_steps  # type: ignore[attr-defined, no-any-return]  # set outside its __init__


def is_fast_dev_run(trainer: Trainer) -> bool:
    """Return whether the Trainer only tries out a few batches; then its logger writes nothing."""
    return bool(trainer.fast_dev_run)  # type: ignore[attr-defined]  # set outside its __init__


_SET_BY_LIGHTNING = ("log", "log_dict")
"""The attributes that Lightning sets on each callback at the start of every run; they hold the whole model."""


def without_trainer(state: dict[str, Any]) -> dict[str, Any]:
    """Return a callback's attributes without those that Lightning sets on it."""
    return {name: value for name, value in state.items() if name not in _SET_BY_LIGHTNING}


def let_go_of_model(callback: Callback) -> None:
    """Remove what Lightning has set on a callback. Who holds the callback after the run would hold the model too."""
    for name in _SET_BY_LIGHTNING:
        vars(callback).pop(name, None)


def is_alone(trainer: Trainer) -> bool:
    """Return whether an evaluation runs outside of a fit (`Trainer.validate` and so on)."""
    return trainer.state.fn != TrainerFn.FITTING
