"""The life that all callbacks which log readings share: watch, measure the due steps, write, let go."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from typing import Any, get_args

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from torch.optim import Optimizer

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
from hookboard.callbacks.watch import Watch, listed_gaps
from hookboard.hooks.compiled import forget_graphs
from hookboard.measure import Plan, Statistic, plan
from hookboard.messages import chosen, warn_switched_off
from hookboard.ranks import Ranks
from hookboard.recording import Reading, Recorder
from hookboard.sites import Stage
from hookboard.writers.loggers import Entry, Loggers


class SiteLogger(EvaluationHooks, ABC):
    """Base of the callbacks: one watch for each stage, from fit start to teardown, and one flush for each due step.

    Evaluation, which is validation, testing and prediction, has one flush for each of its loops.

    A subclass says what is watched (`_watch`) and, where hooks on modules do not show it, measures it before or
    after the optimizer's step.
    """

    readings: tuple[Reading, ...]
    """The merged readings of the last due step or, where evaluation is watched, of its last loop."""

    def __init__(
        self,
        modules: str | Sequence[str] | None,
        types: str | type | Sequence[str | type] | None,
        every_n_steps: int | None,
        statistics: str | Sequence[str | Statistic],
        histogram: bool,
        sync_dist: bool,
        stages: Stage | Sequence[Stage] = "train",
    ) -> None:
        super().__init__()
        check_every_n_steps(every_n_steps, "to follow the Trainer's log_every_n_steps")
        self.modules = modules
        self.types = types
        self.every_n_steps = every_n_steps
        self.statistics = statistics
        self.histogram = histogram
        self.sync_dist = sync_dist
        self.stages = stages
        self.readings = ()
        self._live: dict[str, Watch] = {}
        self._plan()
        _resolved(stages)

    def _plan(self) -> Plan:
        """The statistics, resolved; raises ValueError where they cannot be."""
        return plan(self.statistics)

    @abstractmethod
    def _watch(self, pl_module: LightningModule, recorder: Recorder) -> Watch:
        """What is to be watched in this model, its hooks not yet attached; raises ValueError where there is none."""

    def _before_optimizer_step(self, watch: Watch, optimizer: Optimizer) -> None:
        """Measure what is there only before this optimizer's step."""

    def _after_optimizer_step(self, watch: Watch) -> None:
        """Measure what is there only after the steps of all optimizers."""

    def _flush(self, trainer: Trainer, pl_module: LightningModule, watch: Watch) -> list[Reading]:
        """The readings of the step."""
        return watch.recorder.flush()[0]

    def _finish(self, readings: list[Reading]) -> list[Reading]:
        """What follows from the readings of several sites together."""
        return readings

    def __getstate__(self) -> dict[str, Any]:
        """The configuration and the last readings; a copy watches nothing until a fit of its own starts."""
        return without_trainer(self.__dict__) | {"_live": {}}

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Select, resolve and attach.

        Raises:
            ValueError: the configuration fits no module of this model.
        """
        self._attach(trainer, pl_module, {"train", "validate"})

    def _attach(self, trainer: Trainer, pl_module: LightningModule, running: Set[str]) -> None:
        """Attach to the stages that are wanted and run; the others are resolved all the same, to find mistakes."""
        self._let_go()
        self.readings = ()
        ranks = Ranks() if trainer.world_size > 1 else None
        watches = {}
        for stage in _resolved(self.stages):
            recorder = Recorder(
                self._plan(),
                pl_module.device,
                stage=stage,
                histogram=self.histogram,
                ranks=ranks,
                sync=self.sync_dist,
            )
            watches[stage] = self._watch(pl_module, recorder)
        reason = _why_not_measured(trainer, pl_module)
        if reason:
            inform(f"{self._name} measures nothing: {reason}.")
            return
        if not (self.sync_dist or trainer.is_global_zero):
            return
        self._live = {stage: watch for stage, watch in watches.items() if stage in running}
        if self._live:
            forget_graphs(pl_module)
        for watch in self._live.values():
            watch.every_n_steps = log_every_n_steps(trainer) if self.every_n_steps is None else self.every_n_steps
            watch.loggers = Loggers(trainer.loggers, self._name)
            watch.taps.attach()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Open the taps, if the optimizer step that this batch belongs to is due."""
        watch = self._live.get("train")
        if watch is not None:
            watch.taps.active = watch.is_due = is_due(logged_step(trainer), watch.every_n_steps)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Measure what this optimizer is about to use."""
        watch = self._live.get("train")
        if watch is not None and watch.is_due:
            with self._shielded(watch, "measuring before the optimizer step"):
                self._before_optimizer_step(watch, optimizer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Close the taps; after the optimizer step, merge and write what the step's batches have shown."""
        watch = self._live.get("train")
        if watch is None or not watch.is_due:
            return
        watch.taps.active = False
        watch.taps.settle()
        if is_accumulating(trainer):
            return
        with self._shielded(watch, "measuring after the optimizer step"):
            self._after_optimizer_step(watch)
        if "train" in self._live:
            self._log(trainer, watch)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Close the taps: an epoch that the module itself cuts short has no end of its last batch."""
        if "train" in self._live:
            self._live["train"].taps.active = False

    def _on_loop_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach, where evaluation runs by itself and not within a fit."""
        if trainer.state.fn != TrainerFn.FITTING and running_stage(trainer) in _resolved(self.stages):
            self._attach(trainer, pl_module, {running_stage(trainer)})

    def _on_loop_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int
    ) -> None:
        """Open the taps."""
        if (watch := self._live.get(running_stage(trainer))) is not None:
            watch.taps.active = True

    def _on_loop_batch_end(self, trainer: Trainer) -> None:
        """Close the taps."""
        if (watch := self._live.get(running_stage(trainer))) is not None:
            watch.taps.active = False

    def _on_loop_end(self, trainer: Trainer) -> None:
        """Merge and write what all batches of the loop have shown."""
        if (watch := self._live.get(running_stage(trainer))) is not None:
            self._log(trainer, watch)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Detach: Lightning does not call `teardown` after a failure."""
        self._let_go()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Detach."""
        self._let_go()

    def _let_go(self) -> None:
        live, self._live = self._live, {}
        for watch in live.values():
            watch.taps.detach()

    @contextmanager
    def _shielded(self, watch: Watch, doing: str) -> Iterator[None]:
        """A fault of ours ends the watch, never the training."""
        try:
            yield
        except Exception as error:
            if not watch.recorder.give_up():
                watch.taps.detach()
                self._live.pop(watch.recorder.stage, None)
            warn_switched_off(f"{self._name} ({doing})", error)

    def _log(self, trainer: Trainer, watch: Watch) -> None:
        stage = watch.recorder.stage
        with self._shielded(watch, "reading the step" if stage == "train" else f"reading the {stage} loop"):
            readings = self._finish(self._flush(trainer, trainer.lightning_module, watch))
            self.readings = tuple(reading for reading in readings if not reading.is_empty)
            if trainer.is_global_zero:
                self._write(watch, logged_step(trainer))
            if not watch.gaps_are_named:
                self._name_gaps(watch, readings, logged_step(trainer))
                watch.gaps_are_named = True

    def _write(self, watch: Watch, step: int) -> None:
        entry = Entry(step)
        for reading in self.readings:
            site, stage = reading.site, reading.stage
            entry.scalars.update({site.scalar_tag(k, stage): v for k, v in reading.statistics.items()})
            if reading.histogram is not None:
                entry.histograms[site.histogram_tag(stage)] = reading
        watch.loggers.write(entry)

    def _name_gaps(self, watch: Watch, readings: Sequence[Reading], step: int) -> None:
        """One warning about everything that was selected and not measured, grouped by cause."""
        gaps = list(watch.gaps(readings))
        if not gaps:
            return
        stage = watch.recorder.stage
        where = f"at step {step}" if stage == "train" else f"in the {stage} loop at step {step}"
        warn(
            f"{self._name}: {len(gaps)} of {len(watch.sites)} sites had nothing to measure {where} "
            f"(this is said once):{listed_gaps(gaps)}"
        )

    @property
    def _name(self) -> str:
        return type(self).__name__


def _resolved(stages: Stage | Sequence[Stage]) -> list[Stage]:
    return chosen("stages", stages, get_args(Stage))


def _why_not_measured(trainer: Trainer, pl_module: LightningModule) -> str | None:
    if is_fast_dev_run(trainer):
        return "fast_dev_run has no log to write to"
    if not trainer.loggers:
        return "the Trainer has no logger"
    if pl_module.device.type == "mps":
        return "MPS has no float64, which the sums need"
    return None
