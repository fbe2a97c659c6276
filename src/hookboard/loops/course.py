"""What all hooks of Lightning in `life.py` have in common: begin and end a watch, a batch; follow the model; shield.

A watch is what a callback holds of one stage. Its two ExitStacks undo everything that the callback does: one when the
batch has ended, one when the watch ends. An error in a callback ends its watch, not the run.
"""

import functools
import weakref
from collections.abc import Callable, Set
from typing import Any, ParamSpec, TypeVar

from lightning.pytorch import LightningModule, Trainer

from hookboard.clock import Clock
from hookboard.loops.budget import OVERHEAD, Budget, Share
from hookboard.loops.cadence import is_due
from hookboard.loops.decision import Decision, agreed
from hookboard.loops.duties import Duties, NothingToShowError, W
from hookboard.loops.trainer import callbacks_of, inform, logged_step, warn, without_trainer
from hookboard.loops.watch import Selection, Watch, changes, is_same, names_in, said_of_changes
from hookboard.loops.worker import Patience, Worker, has_own_thread
from hookboard.messages import warn_switched_off
from hookboard.ranks import PATIENCE, Ranks, connected, has_process_group
from hookboard.selection import NothingToSelectError
from hookboard.writers import Loggers

P = ParamSpec("P")
T = TypeVar("T")


class Course(Duties[W]):
    """The course of a run, in the words of a callback's duties."""

    def __init__(self) -> None:
        super().__init__()
        self._live: dict[str, W] = {}
        self._worker = Worker()
        self.clock = Clock()
        self.share = Share()
        self._budget: Budget | None = None
        self._may_rest = False
        self._trainer: weakref.ref[Trainer] | None = None
        """Whose run is watched, or was last."""
        self._ranks: Ranks | None = None
        """Those that merge what they measure, during a run; None if nothing is merged."""
        self.patience: Patience | None = None
        """How long it waits for other ranks, shared with the other callbacks of the run."""

    def __getstate__(self) -> dict[str, Any]:
        """The configuration; a copy watches nothing until a run of its own starts."""
        self._worker.wait()
        nothing = dict.fromkeys(["_budget", "_trainer", "_ranks", "patience"])
        return without_trainer(self.__dict__) | nothing | {"_live": {}, "clock": Clock(), "share": Share()}

    def _start(self, trainer: Trainer, pl_module: LightningModule, running: Set[str]) -> None:
        """Begin to watch those of the callback's stages that are to run."""
        self._end_all()
        self._reset()
        selection, decision = self._decide(trainer, pl_module)
        if decision.reason:
            inform(f"{self._name} {self.verb} nothing: {decision.reason}.")
        elif self._takes_part(trainer) and self._is_connected(trainer):
            in_thread = has_own_thread(pl_module.device) or self._ranks is not None
            if self._ranks is not None:  # where one callback has waited in vain, the next need not wait as long
                others = (one.patience for one in self._together(trainer) if one.patience is not None)
                self.patience = next(others, Patience(PATIENCE))
            self._worker = Worker(f"hookboard {self._name}", in_thread, self.patience)
            self.share = Share()
            self.share.begin(one.clock for one in self._together(trainer))
            self._budget = None if self.max_overhead is None else Budget(self.max_overhead, self.clock)
            self._may_rest = True
            said: set[str] = set()
            for stage in decision.stages:
                if stage in running:
                    loggers, layout = Loggers(trainer.loggers, self._name), dict(pl_module.named_modules())
                    watch = Watch(stage, decision.every_n_steps, loggers, selection, layout, said)
                    self._live[stage] = self._watch(trainer, pl_module, watch)
                    self._attach(trainer, pl_module, self._live[stage])

    def _is_connected(self, trainer: Trainer) -> bool:
        """Connect the ranks, if they are to merge what they measure; a warning says why they cannot be."""
        if self._merges(trainer):
            self._ranks, why_not = connected()
            if why_not:
                warn(f"{self._name} {self.verb} nothing: {why_not}.")
            return not why_not
        return True

    def _decide(self, trainer: Trainer, pl_module: LightningModule) -> tuple[Selection, Decision]:
        selection, reason, said, failure = Selection(), None, None, None
        must_agree = trainer.world_size > 1 and self._is_collective(trainer) and has_process_group()
        try:
            selection = self._select(pl_module)
            reason = self._why_not(trainer, pl_module)
        except NothingToSelectError as nothing:
            reason = str(nothing)
        except ValueError as error:
            said, failure = f"{self._name} could not start: {error}", ValueError(f"{self._name}: {error}")
            if not must_agree:
                raise failure from error
        mine = Decision(reason, int(self._cadence(trainer)), self._stages(trainer), said)
        decision = agreed(mine) if must_agree else mine
        if failure:
            raise failure
        return selection, decision

    def _start_batch(
        self, trainer: Trainer, pl_module: LightningModule, stage: str, batch: Any, batch_idx: int, dataloader_idx: int
    ) -> None:
        watch = self._live.get(stage)
        if watch is None:
            return
        if self._budget is not None and stage == "train" and is_due(logged_step(trainer), watch.every_n_steps):
            self._keep_step(watch)
            if stage not in self._live:  # another rank is lost
                return
        watch.is_due = self._wants(trainer, watch, batch_idx, dataloader_idx)
        if self._budget is not None and watch.stage == "train":
            self._budget.begin_batch(logged_step(trainer))
            self._budget.is_due = watch.is_due
        if watch.is_due:
            watch.is_open = self._may_rest = True
            self._do(watch, "at the start of a batch", self._open_batch, trainer, pl_module, watch, batch)

    def _open_batch(self, trainer: Trainer, pl_module: LightningModule, watch: W, batch: Any) -> None:
        if watch.stage == "train":
            self._follow(trainer, pl_module, watch)
        self._begin_batch(trainer, pl_module, watch, batch)

    def _finish_batch(self, trainer: Trainer, stage: str) -> None:
        watch = self._live.get(stage)
        if watch is not None and watch.is_due:
            watch.is_due = False
            if not self.changes_tensors:
                self._do(watch, "at the end of a batch", watch.until_batch_end.close)
            if watch.stage in self._live:
                self._do(watch, "at the end of a batch", self._end_batch, trainer, watch)
        if self._may_rest and stage == "train":  # by now the model has run once with its hooks
            self._may_rest = False
            for each in list(self._live.values()):
                self._do(each, "at the end of a batch", each.rest)

    def _leave_batch(self) -> None:
        """Undo what an earlier batch has left, and say what the worker has to say by now."""
        self._worker.catch_up()
        for watch in list(self._live.values()):
            watch.is_due = False
            if watch.is_open:
                watch.is_open = False
                self._do(watch, "at the end of a batch", watch.until_batch_end.close)

    def _follow(self, trainer: Trainer, pl_module: LightningModule, watch: W) -> None:
        """If modules of the model were replaced, watch the new ones, and warn once."""
        layout = dict(pl_module.named_modules())
        if is_same(layout, watch.layout):
            return
        watch.layout = layout
        old = watch.selection
        try:
            watch.selection = self._select(pl_module)
        except ValueError:  # what the user named is no longer there
            watch.selection = old.what_is_left(pl_module)
        changed = changes(old, watch.selection)
        if changed:
            watch.until_end.close()
            self._attach(trainer, pl_module, watch)
        self._say_changed(watch, changed, pl_module)

    def _say_changed(self, watch: W, changed: dict[str, str], pl_module: LightningModule) -> None:
        fresh = {name: kind for name, kind in changed.items() if name not in watch.said}
        watch.said.update(fresh)
        if fresh:
            warn(
                f"{self._name}: the model has changed during the fit and is watched as it is now; "
                f"{said_of_changes(fresh, names_in(pl_module))}."
            )

    @property
    def is_in_training(self) -> bool:
        """Whether it watches a training now."""
        return "train" in self._live

    def _overhead(self, trainer: Trainer, watch: W) -> dict[str, float]:
        """The share of time that all callbacks have taken since the last look of any, by its tag; one of them tells."""
        if watch.stage != "train":
            return {}
        every = self._together(trainer)
        first = next(one for one in every if one.tells_overhead and one.is_in_training)
        share = first.share.take(logged_step(trainer), (one.clock for one in every))
        return {} if share is None else {OVERHEAD: share}

    def _together(self, trainer: Trainer) -> "list[Course[Any]]":
        """All callbacks of the Trainer that have a clock."""
        every = [callback for callback in callbacks_of(trainer) if isinstance(callback, Course)]
        return every if self in every else [self]  # a callback of the user's may hold it and call it

    def _keep_step(self, watch: W) -> None:
        """Take the cadence that all ranks have found at the last look, so that they measure the same steps."""
        if self._ranks is not None:
            self._worker.settle()
            if watch.wanted is not None:
                self._stretch(watch, watch.wanted)

    def _stretch(self, watch: W, factor: int) -> None:
        """Take this many times the cadence from now on; said once."""
        is_first, watch.stretch = watch.stretch == 1 and not watch.is_stretch_said, factor
        if is_first and factor > 1 and self._budget is not None:
            watch.is_stretch_said = True
            idle = f"each step between two looks {1e3 * self._budget.idle:.2g} ms, " if self._budget.idle else ""
            inform(
                f"{self._name} measures every {factor * watch.every_n_steps} steps instead of {watch.every_n_steps}: "
                f"a look takes {1e3 * (self._budget.look or 0):.3g} ms, {idle}a bare step "
                f"{1e3 * self._budget.step:.3g} ms, and max_overhead is {self._budget.share}. "
                "It may change with the time they take (this is said once)."
            )

    def _do(self, watch: W, when: str, duty: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call the duty; an error becomes a warning that ends the watch, unless the callback may stop the run.

        No context manager, which takes four calls where this is one: each step needs several of them.
        """
        try:
            duty(*args, **kwargs)
        except Exception as error:
            if not self._may_go_on(watch, when, error):
                raise

    def _may_go_on(self, watch: W, when: str, error: Exception) -> bool:
        """Whether a fault is no fault of the run; then it has been said, and the watch has ended."""
        if isinstance(error, NothingToShowError):
            self._drop(watch)
            warn(f"{self._name} {self.verb} nothing: {error}.")
            return True
        if self.may_stop_the_run:
            return False
        is_first, watch.has_fault = not watch.has_fault, True
        self._drop(watch)
        if is_first:
            warn_switched_off(f"{self._name} ({when})", error)
        return True

    def _drop(self, watch: W) -> None:
        # Where one rank stops, none can merge any longer, in no stage.
        for each in (ended := [watch] if self._ranks is None else [watch, *self._live.values()]):
            each.has_fault = True
        self._worker.settle()
        for each in ended:
            if self._live.pop(each.stage, None) is not None:
                self._leave(each)
                _undo(each)
        if self._ranks is not None:
            self._ranks.leave()
            self._ranks = self.patience = None

    def _disconnect(self) -> None:
        if self._ranks is not None:
            self._ranks.close()
            self._ranks = self.patience = None

    def _at(self, point: str, exchange: Callable[[], T]) -> Callable[[], T]:
        """What calls `exchange`, with several ranks as `Ranks.at` does; any thread may call it."""
        return exchange if self._ranks is None else functools.partial(self._ranks.at, point, exchange)

    def _leave_to_worker(self, watch: W, job: Callable[[], None], when: str) -> None:
        """Do what training need not wait for; if it fails, the same happens as if it had failed here.

        Args:
            watch: what it is done for.
            job: reads nothing of the Trainer, the model, or an `experiment` that a logger still has to make.
            when: said of a fault.
        """

        def on_fault(error: BaseException) -> None:
            if not isinstance(error, Exception) or not self._may_go_on(watch, when, error):
                raise error

        self._worker.do(job, on_fault)

    def _end_all(self) -> None:
        try:
            self._worker.close()
        finally:
            self._disconnect()
            live, self._live = self._live, {}
            for watch in live.values():
                try:
                    self._leave(watch)
                finally:
                    _undo(watch)

    @property
    def _name(self) -> str:
        return type(self).__name__


def _undo(watch: Watch) -> None:
    try:
        with watch.until_end, watch.until_batch_end:
            watch.is_due = False
    except Exception as error:
        warn(f"not all hooks of a callback could be removed: {type(error).__name__}: {error}")
