"""`step_apart`: runs `training_step` as often as one likes, apart from the run that it belongs to."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from hookboard.replay.step import _nothing, _replaced, _tensor_in, _without_logs, run_training_step


@contextmanager
def step_apart(pl_module: LightningModule, trainer: Trainer | None) -> Iterator[Callable[[Any], Tensor]]:
    """Prepare to run `training_step` with automatic optimization; what it logs inside the context is discarded.

    The state that it changes is not put back, see `undisturbed`.

    Args:
        pl_module: the module.
        trainer: its Trainer; None if it has none.

    Yields:
        A function from a batch to the loss, in the precision of the Trainer.
    """
    with ExitStack() as until_end:
        if trainer is None:
            until_end.enter_context(_replaced(pl_module, log=_nothing, log_dict=_nothing))
        else:
            until_end.enter_context(_without_logs(trainer, pl_module))

        def run(batch: Any) -> Tensor:
            with nullcontext() if trainer is None else trainer.precision_plugin.train_step_context():
                return _tensor_in(run_training_step(pl_module, batch, 0))

        yield run
