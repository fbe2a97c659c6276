"""The life that all callbacks which log readings share: watch, measure the due steps, write, let go."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn
from torch import Tensor
from torch.amp import GradScaler
from torch.nn import Parameter
from torch.optim import Optimizer

from hookboard.compiled import forget_graphs
from hookboard.parameters import why_silent
from hookboard.ranks import Ranks
from hookboard.recorder import Reading, Recorder
from hookboard.schedule import is_due
from hookboard.sites import Role, warn_switched_off
from hookboard.statistics import Plan, Statistic, plan
from hookboard.taps import Taps
from hookboard.writers import Entry, write


@dataclass
class Watch:
    """What a callback holds during one fit, and lets go of after it.

    Args:
        recorder: measures what the taps and the parameters show.
        taps: the hooks on modules.
        parameters: the parameters that are watched, by name.
        sites: what should have been measured after a due step.
        every_n_steps: the cadence in force.
        loggers: those that are written to.
        before: the parameters as they were before the optimizer stepped, during a due step.
        scaler: what scales the loss, and with it the gradients.
    """

    recorder: Recorder
    taps: Taps
    parameters: dict[str, Parameter]
    sites: list[tuple[str, Role]]
    every_n_steps: int = 0
    loggers: list[Logger] = field(default_factory=list)
    before: dict[str, Tensor] = field(default_factory=dict)
    is_due: bool = False
    gaps_are_named: bool = False
    refused: set[str] = field(default_factory=set)
    scaler: GradScaler | None = None


class SiteLogger(Callback, ABC):
    """Base of the callbacks: one watch from fit start to teardown, one flush for each due step.

    A subclass says what is watched (`_watch`) and, where hooks on modules do not show it, measures it before or
    after the optimizer's step.
    """

    readings: tuple[Reading, ...]
    """The merged readings of the last due step; empty before the first."""

    def __init__(
        self,
        modules: str | Sequence[str] | None,
        types: str | type | Sequence[str | type] | None,
        every_n_steps: int | None,
        statistics: str | Sequence[str | Statistic],
        histogram: bool,
        sync_dist: bool,
    ) -> None:
        super().__init__()
        is_count = isinstance(every_n_steps, int) and not isinstance(every_n_steps, bool)
        if every_n_steps is not None and (not is_count or every_n_steps < 1):
            raise ValueError(
                f"every_n_steps={every_n_steps!r}: give a whole number of optimizer steps, 1 or more, or leave it "
                "out to follow the Trainer's log_every_n_steps."
            )
        self.modules = modules
        self.types = types
        self.every_n_steps = every_n_steps
        self.statistics = statistics
        self.histogram = histogram
        self.sync_dist = sync_dist
        self.readings = ()
        self._live: Watch | None = None
        self._plan()

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

    def _flush(self, watch: Watch) -> list[Reading]:
        """The readings of the step."""
        return watch.recorder.flush()

    def _finish(self, readings: list[Reading]) -> list[Reading]:
        """What follows from the readings of several sites together."""
        return readings

    def __getstate__(self) -> dict[str, Any]:
        """The configuration and the last readings; a copy watches nothing until a fit of its own starts."""
        return self.__dict__ | {"_live": None}

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Select, resolve and attach.

        Raises:
            ValueError: the configuration fits no module of this model.
        """
        self._let_go()
        self.readings = ()
        ranks = Ranks() if trainer.world_size > 1 else None
        recorder = Recorder(self._plan(), pl_module.device, histogram=self.histogram, ranks=ranks, sync=self.sync_dist)
        watch = self._watch(pl_module, recorder)
        reason = _why_not_measured(trainer, pl_module)
        if reason:
            rank_zero_info(f"hookboard: {self._name} measures nothing: {reason}.")
            return
        if not (self.sync_dist or trainer.is_global_zero):
            return
        watch.every_n_steps = _log_every_n_steps(trainer) if self.every_n_steps is None else self.every_n_steps
        watch.loggers = list(trainer.loggers)
        self._live = watch
        forget_graphs(pl_module)
        watch.taps.attach()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Open the taps, if the optimizer step that this batch belongs to is due."""
        if self._live is not None:
            self._live.is_due = is_due(_logged_step(trainer), self._live.every_n_steps)
            self._live.taps.active = self._live.is_due

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Measure what this optimizer is about to use."""
        if self._live is not None and self._live.is_due:
            with self._shielded("measuring before the optimizer step"):
                self._before_optimizer_step(self._live, optimizer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Close the taps; after the optimizer step, merge and write what the step's batches have shown."""
        watch = self._live
        if watch is None or not watch.is_due:
            return
        watch.taps.active = False
        watch.taps.settle()
        if trainer.fit_loop.epoch_loop._should_accumulate():
            return
        with self._shielded("measuring after the optimizer step"):
            self._after_optimizer_step(watch)
        if self._live is None:
            return
        with self._shielded("reading the step"):
            readings = self._finish(self._flush(watch))
            self.readings = tuple(reading for reading in readings if not reading.is_empty)
            if trainer.is_global_zero:
                self._write(watch, _logged_step(trainer))
            if not watch.gaps_are_named:
                self._name_gaps(watch, readings, _logged_step(trainer))
                watch.gaps_are_named = True

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Close the taps: an epoch that the module itself cuts short has no end of its last batch."""
        if self._live is not None:
            self._live.taps.active = False

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Detach: Lightning does not call `teardown` after a failure."""
        self._let_go()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Detach."""
        self._let_go()

    def _let_go(self) -> None:
        watch, self._live = self._live, None
        if watch is not None:
            watch.taps.detach()

    @contextmanager
    def _shielded(self, doing: str) -> Iterator[None]:
        """A fault of ours ends the watch, never the training."""
        watch = self._live
        try:
            yield
        except Exception as error:
            if watch is None or not watch.recorder.give_up():
                self._let_go()
            warn_switched_off(f"{self._name} ({doing})", error)

    def _write(self, watch: Watch, step: int) -> None:
        entry = Entry(step)
        for reading in self.readings:
            entry.scalars.update({reading.site.scalar_tag(k): v for k, v in reading.statistics.items()})
            if reading.histogram is not None:
                entry.histograms[reading.site.histogram_tag()] = reading
        for logger in list(watch.loggers):
            name = type(logger).__name__
            try:
                refused = write(logger, entry)
            except Exception as error:
                watch.loggers.remove(logger)
                warn_switched_off(f"writing of {self._name} to {name}", error)
                continue
            for what in refused:
                if f"{name} {what}" not in watch.refused:
                    watch.refused.add(f"{name} {what}")
                    rank_zero_info(f"hookboard: {self._name}: {name} takes no {what}; it gets the rest.")

    def _name_gaps(self, watch: Watch, readings: Sequence[Reading], step: int) -> None:
        """One warning about everything that was selected and not measured, grouped by cause."""
        measured = {(r.site.name, r.site.role): r for r in readings}
        causes: dict[str, list[str]] = {}
        for name, role in watch.sites:
            reading = measured.get((name, role))
            if reading is not None and not reading.is_empty:
                continue
            if reading is not None:
                cause = "every tensor was empty"
            elif watch.recorder.is_off(name, role):
                cause = "switched off, as a warning above says"
            elif name in watch.parameters:
                cause = why_silent(watch.parameters[name])
            else:
                cause = watch.taps.why_silent(name, role)
            causes.setdefault(f"{role}: {cause}", []).append(name)
        if not causes:
            return
        lines = [f"\n  - {', '.join(names)}: {cause}" for cause, names in causes.items()]
        gaps = sum(map(len, causes.values()))
        rank_zero_warn(
            f"hookboard: {self._name}: {gaps} of {len(watch.sites)} sites had nothing to measure at step {step} "
            f"(this is said once):{''.join(lines)}"
        )

    @property
    def _name(self) -> str:
        return type(self).__name__


def _logged_step(trainer: Trainer) -> int:
    """The value that Lightning's loggers write for the optimizer step that the current batch belongs to.

    `global_step` is not it: it counts every optimizer's step, and has already moved on when a batch ends.
    """
    return trainer.fit_loop.epoch_loop._batches_that_stepped


def _log_every_n_steps(trainer: Trainer) -> int:
    return trainer.log_every_n_steps  # type: ignore[attr-defined, no-any-return]  # set outside its __init__


def _why_not_measured(trainer: Trainer, pl_module: LightningModule) -> str | None:
    if trainer.fast_dev_run:  # type: ignore[attr-defined]  # set outside its __init__
        return "fast_dev_run has no log to write to"
    if not trainer.loggers:
        return "the Trainer has no logger"
    if pl_module.device.type == "mps":
        return "MPS has no float64, which the sums need"
    return None
