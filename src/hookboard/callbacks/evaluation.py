"""Lightning's hooks of the three loops that evaluate, as one set."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer


class EvaluationHooks(Callback):
    """Validation, testing and prediction have one life; `trainer.state.stage` tells which it is."""

    def _on_loop_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Before the first batch of a loop."""

    def _on_loop_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int
    ) -> None:
        """Before the step of each batch."""

    def _on_loop_batch_end(self, trainer: Trainer) -> None:
        """After the step of each batch."""

    def _on_loop_end(self, trainer: Trainer) -> None:
        """After the last batch of a loop."""

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """See `_on_loop_start`."""
        self._on_loop_start(trainer, pl_module)

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """See `_on_loop_batch_start`."""
        self._on_loop_batch_start(trainer, pl_module, batch, batch_idx, dataloader_idx)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """See `_on_loop_batch_end`."""
        self._on_loop_batch_end(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """See `_on_loop_end`."""
        self._on_loop_end(trainer)

    on_test_start = on_predict_start = on_validation_start
    on_test_batch_start = on_predict_batch_start = on_validation_batch_start
    on_test_batch_end = on_predict_batch_end = on_validation_batch_end
    on_test_end = on_predict_end = on_validation_end
