"""What ends the callbacks of a run whose other callbacks fail while it ends."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from hookboard.callbacks.duties import Duties


class Ending(Callback):
    """Ends all callbacks of hookboard before any other callback hears of the end.

    If a callback raises in `on_exception` or `teardown`, Lightning does not call those behind it, and nothing else of
    the run follows. This one stands first during the run, and leaves the Trainer when the run ends.
    """

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Undo everything."""
        self._end(trainer, lambda callback: callback.on_exception(trainer, pl_module, exception))

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Undo everything."""
        self._end(trainer, lambda callback: callback.teardown(trainer, pl_module, stage))

    def _end(self, trainer: Trainer, end: Any) -> None:
        given: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]  # set outside its __init__
        trainer.callbacks = [callback for callback in given if callback is not self]  # type: ignore[attr-defined]  # as above
        for callback in given:
            if isinstance(callback, Duties):
                end(callback)


def ensure_ending(trainer: Trainer) -> None:
    """Put an `Ending` before all callbacks of the Trainer, unless one is there."""
    given: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]  # set outside its __init__
    if not any(isinstance(callback, Ending) for callback in given):
        trainer.callbacks = [Ending(), *given]  # type: ignore[attr-defined]  # a new list: Lightning walks through the old
