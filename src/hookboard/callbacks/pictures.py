"""The life that all callbacks which log pictures share: a batch now and then, its pictures, the loggers."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, get_args

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn

from hookboard.callbacks.evaluation import EvaluationHooks
from hookboard.callbacks.schedule import is_due
from hookboard.callbacks.trainer import (
    check_every_n_steps,
    inform,
    is_accumulating,
    is_fast_dev_run,
    log_every_n_steps,
    logged_step,
    running_stage,
    warn,
    without_trainer,
)
from hookboard.hooks.compiled import run_eagerly
from hookboard.images.picture import Picture
from hookboard.messages import chosen, warn_switched_off
from hookboard.sites import Stage
from hookboard.writers.loggers import Entry, Loggers

STEPS_PER_LOG = 20
"""Pictures are looked at less often than numbers, and cost more: by default, one for this many log steps."""


@dataclass
class Session:
    """What a callback holds while pictures are to be taken.

    Args:
        stage: where they are taken.
        every_n_steps: the cadence in force.
        loggers: those that are written to.
        watched: what `_resolve` found.
        last: the step of the last pictures.
        is_due: whether the loop that runs is still to give pictures.
        until_end: undone at the end of the batch that is watched; None outside of it.
        taken: what `_begin` returned, until the pictures are made.
        is_first: whether no batch has been shown yet.
    """

    stage: str
    every_n_steps: int
    loggers: Loggers
    watched: Any
    last: int | None = None
    is_due: bool = False
    until_end: ExitStack | None = None
    taken: Any = None
    is_first: bool = True


class PictureLogger(EvaluationHooks, ABC):
    """Base of the callbacks that log pictures.

    A subclass resolves what it is to show (`_resolve`), hooks it for one batch (`_begin`), and makes the pictures when
    the batch has ended (`_end`). Hooks are there during that batch alone.
    """

    needs_weights = True
    """Whether weights are read, or modules called."""

    def __init__(self, stage: Stage | None, batch_idx: int, every_n_steps: int | None, **counts: int) -> None:
        super().__init__()
        check_every_n_steps(every_n_steps, f"for {STEPS_PER_LOG} times the Trainer's log_every_n_steps")
        if stage is not None:
            chosen("stages", stage, get_args(Stage))
        for name, count in counts.items():
            if count < 1:
                raise ValueError(f"{name}={count!r}: a picture of nothing. Give 1 or more.")
        self.stage = stage
        self.batch_idx = batch_idx
        self.every_n_steps = every_n_steps
        self._session: Session | None = None

    @abstractmethod
    def _resolve(self, pl_module: LightningModule) -> Any:
        """What is to be shown; raises ValueError where the configuration fits nothing."""

    def _begin(self, pl_module: LightningModule, batch: Any, session: Session, until_end: ExitStack) -> Any:
        """Hook what is to be shown, leave the removal to `until_end`, and return what the hooks fill."""

    @abstractmethod
    def _end(self, trainer: Trainer, session: Session) -> dict[str, Picture]:
        """The pictures of the batch, by their tags."""

    def __getstate__(self) -> dict[str, Any]:
        """The configuration; a copy shows nothing until a fit of its own starts."""
        return without_trainer(self.__dict__) | {"_session": None}

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Resolve.

        Raises:
            ValueError: the configuration fits no module of this model.
        """
        stage = self.stage or ("validate" if trainer.enable_validation else "train")
        self._start(trainer, pl_module, stage)
        if self._session is not None and stage == "validate" and not trainer.enable_validation:
            warn(f"{self._name} takes its pictures in validation, and this fit has none.")

    def _start(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._let_go()
        watched = self._resolve(pl_module)
        if is_fast_dev_run(trainer) or not trainer.loggers:
            inform(f"{self._name} shows nothing: there is no logger to write to.")
            return
        if self.needs_weights and isinstance(trainer.strategy, FSDPStrategy | DeepSpeedStrategy):
            warn(
                f"{self._name} shows nothing under {type(trainer.strategy).__name__}, which keeps parts of "
                "the weights on other ranks; ModelParallelStrategy (FSDP2) works."
            )
            return
        # Sharded modules run on all ranks or not at all.
        if trainer.is_global_zero or isinstance(trainer.strategy, ModelParallelStrategy):
            n = STEPS_PER_LOG * log_every_n_steps(trainer) if self.every_n_steps is None else self.every_n_steps
            n = n if trainer.state.fn == TrainerFn.FITTING else 1
            self._session = Session(stage, n, Loggers(trainer.loggers, self._name), watched)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Begin to watch, if the optimizer step that this batch belongs to is due."""
        session = self._session
        if session is not None and session.stage == "train" and is_due(logged_step(trainer), session.every_n_steps):
            self._begin_batch(pl_module, batch, session)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Make and write the pictures of the last batch before a due optimizer step."""
        self._end_batch(trainer, is_wanted=not is_accumulating(trainer))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say so where the fit was too short for a picture."""
        session = self._session
        if session is not None and session.stage == "train" and session.is_first:
            inform(
                f"{self._name} has shown nothing: the fit made {logged_step(trainer)} steps, and "
                f"every_n_steps is {session.every_n_steps}."
            )

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop watching: an epoch that the module itself cuts short has no end of its last batch."""
        self._end_batch(trainer, is_wanted=False)

    def _on_loop_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Decide whether this loop gives pictures."""
        stage = running_stage(trainer)
        if trainer.state.fn != TrainerFn.FITTING and stage == (self.stage or "validate"):
            self._start(trainer, pl_module, stage)
        session, step = self._session, logged_step(trainer)
        if session is not None and session.stage == stage and session.every_n_steps:
            session.is_due = session.last is None or step - session.last >= session.every_n_steps
            session.last = step if session.is_due else session.last

    def _on_loop_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int
    ) -> None:
        """Begin to watch, if it is this batch."""
        session = self._session
        if session is None or not session.is_due or session.stage != running_stage(trainer):
            return
        if (batch_idx, dataloader_idx) == (self.batch_idx, 0):
            session.is_due = False
            self._begin_batch(pl_module, batch, session)

    def _on_loop_batch_end(self, trainer: Trainer) -> None:
        """Make and write the pictures of the batch."""
        self._end_batch(trainer, is_wanted=True)

    def _on_loop_end(self, trainer: Trainer) -> None:
        """Say so where the batch that was to be shown has not come."""
        session = self._session
        if session is not None and session.is_due and session.stage == running_stage(trainer):
            self._let_go()
            warn(
                f"{self._name} shows batch {self.batch_idx}, and this {session.stage} loop ended before it: "
                "there will be no picture. Set batch_idx to a smaller number."
            )

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Let go: Lightning does not call `teardown` after a failure."""
        self._let_go()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Let go."""
        self._let_go()

    def _begin_batch(self, pl_module: LightningModule, batch: Any, session: Session) -> None:
        session.until_end = ExitStack()
        with self._shielded("watching a batch"):
            if session.stage != "train":
                # Compiled code would not see hooks that come after it. In training it has to stay: its numbers differ.
                session.until_end.enter_context(run_eagerly())
            session.taken = self._begin(pl_module, batch, session, session.until_end)

    def _end_batch(self, trainer: Trainer, is_wanted: bool) -> None:
        session = self._session
        if session is None or session.until_end is None:
            return
        session.until_end.close()
        session.until_end = None
        if is_wanted:
            with self._shielded("making pictures"):
                self._write(trainer, session, self._end(trainer, session))
            session.is_first = False
            session.taken = None

    def _source(self, session: Session) -> str:
        """Which samples a picture shows."""
        nouns = {"validate": "validation", "test": "test", "predict": "prediction"}
        return f"{nouns[session.stage]} batch {self.batch_idx}" if session.stage in nouns else "training batch"

    def _write(self, trainer: Trainer, session: Session, pictures: dict[str, Picture]) -> None:
        if pictures and trainer.is_global_zero:
            session.loggers.write(Entry(logged_step(trainer), pictures=pictures))

    def _let_go(self) -> None:
        session, self._session = self._session, None
        if session is not None and session.until_end is not None:
            session.until_end.close()

    @contextmanager
    def _shielded(self, doing: str) -> Iterator[None]:
        """A fault of ours ends the pictures, never the run."""
        try:
            yield
        except Exception as error:
            self._let_go()
            warn_switched_off(f"{self._name} ({doing})", error)

    @property
    def _name(self) -> str:
        return type(self).__name__
