"""When each callback does what, on one page.

    on_fit_start, or on_<loop>_start of a loop by itself   _select, _why_not; _prepare and _attach for each stage
        on_train_start, on_<loop>_start                    _begin_training, load_state_dict; _begin_evaluation
            on_<stage>_batch_start                         _wants; if it does, _begin_batch
                on_before_backward, on_after_backward      _before_backward, _after_backward
                on_before_optimizer_step                   _before_optimizer_step
            on_<stage>_batch_end                           until_batch_end is closed; _end_batch
        on_<loop>_end, on_train_end                        _end_evaluation, _end_training
    teardown or on_exception                               everything left is undone
    on_save_checkpoint, whenever that is                   StageState.state_dict

`FirstCallback` and `LastCallback` in `trainer.py` call what stands between the first line and the last two: no
callback implements those hooks itself. A callback with `sees_every_step` is also asked at each training batch, due or
not: _see_batch, _see_loss, _see_gradients, _see_step, _see_batch_end.

A `StageState` is what a callback holds of one stage. Its two ExitStacks undo everything that the callback does: one
when the batch has ended, one when the stage ends. An error in a callback ends its stage, not the run.
"""

import functools
from collections.abc import Callable, Set
from contextlib import suppress
from time import perf_counter
from typing import Any, ParamSpec, TypeVar

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.optim import Optimizer

from hookboard.clock import Clock, timed
from hookboard.loops.budget import OVERHEAD, Budget, OverheadShare, is_due
from hookboard.loops.callback_methods import (
    CallbackMethods,
    NothingToShowError,
    W,
    inform_of_many_tags,
    warn_of_equal_tags,
)
from hookboard.loops.loop import Loop
from hookboard.loops.saved import KEY, arguments_of, checkpoint_entry, restore, save
from hookboard.loops.stage_state import (
    Decision,
    Selection,
    StageState,
    agreed,
    changes,
    is_same,
    names_in,
    said_of_changes,
)
from hookboard.loops.trainer import TrainerLoop, let_go_of_model, without_trainer
from hookboard.loops.worker import Patience, Worker, has_own_thread
from hookboard.messages import alert, inform, rank_zero_warn, warn_switched_off
from hookboard.ranks import MAX_WAIT_SECONDS, Ranks, connected, has_process_group
from hookboard.selection import NothingToSelectError
from hookboard.writers import Loggers

P = ParamSpec("P")
T = TypeVar("T")


class _StateKey:
    """The callback's key in checkpoints; an object has its own, so a class tells here that it is none."""

    def __get__(self, callback: object | None, kind: type) -> str:
        if callback is None:  # no other error: what lists the members of a class goes on after this one
            raise AttributeError(
                f"callbacks=[{kind.__name__}]: give an object, as in {kind.__name__}(), not its class."
            )
        return kind.__qualname__


class HookboardCallback(CallbackMethods[W]):
    """Base of all callbacks: what they do at each point of a run."""

    state_key = _StateKey()

    def __init__(self) -> None:
        super().__init__()
        self._live: dict[str, W] = {}
        self._worker = Worker()
        self.clock = Clock()
        self.share = OverheadShare()
        self._budget: Budget | None = None
        self._watched: Callable[[], Loop | None] | None = None
        """Gives the loop that is watched, or was last, while it is there."""
        self._ranks: Ranks | None = None
        """Those that merge what they measure, during a run; None if nothing is merged."""
        self.patience: Patience | None = None
        """How long it waits for other ranks, shared with the other callbacks of the run."""
        self._kept: dict[str, Any] | None = None
        """What the last fit knew when it ended."""
        self._loaded: Any = None
        """What the checkpoint of the fit holds that this one continues; None without it."""
        vars(self)["state_key"] = type(self).__qualname__  # Lightning asks for it before each hook

    def __getstate__(self) -> dict[str, Any]:
        """Return the configuration, and nothing of a run: a copy watches nothing until a run of its own starts."""
        self._worker.wait()
        nothing = dict.fromkeys(["_budget", "_watched", "_ranks", "patience", "_kept", "_loaded"])
        return without_trainer(self.__dict__) | nothing | {"_live": {}, "clock": Clock(), "share": OverheadShare()}

    # The hooks that a Trainer calls; `FirstCallback` and `LastCallback` have the others.

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """When a fit starts, drop the checkpoint entry of the one before: it must not be saved again."""
        if TrainerLoop(trainer).is_fitting:
            self._kept = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """See `begin_fit`."""
        self.begin_fit(TrainerLoop(trainer))

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """See `begin_evaluation_run`; within a fit, `LastCallback` begins the loop."""
        self.begin_evaluation_run(TrainerLoop(trainer))

    on_test_start = on_predict_start = on_validation_start

    @timed
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Undo everything: Lightning does not call `teardown` after a failure."""
        self.teardown(trainer, pl_module, "")

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Undo everything."""
        self.end_run(TrainerLoop(trainer))

    @timed
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Append this callback's state to the checkpoint, on rank 0 only, so that a resumed fit can go on with it.

        An error only gives a warning. Nothing is saved while the callback watches the run of another Trainer.
        """
        loop = TrainerLoop(trainer)
        if loop.is_rank_zero and not self._is_taken(loop):
            try:
                save(self._entry(loop), checkpoint)
            except Exception as error:
                alert(f"what {self._name} has seen is not in the checkpoint: {type(error).__name__}: {error}")

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Keep what the checkpoint holds until the training starts: some strategies load it after `on_fit_start`."""
        loop = TrainerLoop(trainer)
        if loop.is_fitting and not self._is_taken(loop):
            # The search for a learning rate saves and loads a checkpoint of its own, before this fit knows anything.
            self._loaded = checkpoint.get(KEY, [] if self._loaded is None else self._loaded)

    # What a loop calls.

    @timed
    def begin_fit(self, loop: Loop) -> None:
        """Select and attach.

        Raises:
            ValueError: the configuration does not fit the model.
        """
        if self._may_take(loop):
            loop.join(self)
            self._start(loop, {"train", "validate"})
            inform_of_many_tags(self)
            warn_of_equal_tags(self, loop)

    @timed
    def begin_evaluation_run(self, loop: Loop) -> None:
        """Select and attach, and begin the loop, in an evaluation outside of a fit."""
        if not loop.is_fitting and self._may_take(loop):
            loop.join(self)
            stage = loop.stage
            if stage in self._stages(loop):
                self._start(loop, {stage})
            warn_of_equal_tags(self, loop)
            self._start_evaluation(loop)

    def end_run(self, loop: Loop) -> None:
        """Undo everything."""
        if not self._is_taken(loop):
            try:
                self._end_run(loop)
            finally:
                loop.leave(self)

    def _other(self, loop: Loop) -> Loop | None:
        """Return the loop that it watches, or watched last, if that is another one and still there."""
        watched = None if self._watched is None else self._watched()
        return None if watched == loop else watched

    def _is_taken(self, loop: Loop) -> bool:
        """Return whether it watches a run of another loop, which is still going on."""
        other = self._other(loop) if self._live else None
        return other is not None and other.is_running

    def _may_take(self, loop: Loop) -> bool:
        """Return True unless the run of another loop is being watched; then warn that this one will not be."""
        if self._is_taken(loop):
            rank_zero_warn(
                f"{self._name} {self.verb} nothing in this run: it still watches that of another Trainer. "
                "Give each Trainer a callback of its own."
            )
            return False
        other = self._other(loop)
        if other is not None:
            other.leave(self)
        self._watched = loop.weakly()
        return True

    @timed
    def begin_training(self, loop: Loop) -> None:
        """Call `_begin_training` if training is watched, then restore what a loaded checkpoint holds."""
        state = self._live.get("train")
        if state is not None:
            self._do(state, "at the start of the training", self._begin_training, loop, state)
        self._go_on(loop)

    def _go_on(self, loop: Loop) -> None:
        """Restore what the fit knew that this one continues; if that is not possible, say why and begin anew."""
        loaded, self._loaded = self._loaded, None
        if loaded is None or not self._live:
            return
        try:
            must_be_there = self.remembers and bool(loop.logged_step)
            restore(loaded, self._name, self._arguments(), self._live, must_be_there)
        except Exception as error:
            alert(f"{self._name} begins anew, without what was seen before the checkpoint: {error}.")

    def begin_batch(self, loop: Loop, stage: str, batch: Any, batch_idx: int, dataloader_idx: int) -> None:
        """Decide whether the batch is due, and then call `_begin_batch`; call `_see_batch` if every step is seen."""
        state = self._live.get(stage)
        if state is None:
            return
        has_budget = self._budget is not None and stage == "train"
        if has_budget and is_due(loop.logged_step, state.every_n_steps):
            self._do(state, "at the start of a batch", self._keep_step, state)
            if stage not in self._live:  # another rank is lost
                return
        state.is_due = self._wants(loop, state, batch_idx, dataloader_idx)
        if self._budget is not None and has_budget:
            self._budget.begin_batch(loop.logged_step)
            self._budget.is_due = state.is_due
        if state.is_due:
            state.is_open = True
            self._do(state, "at the start of a batch", self._open_batch, loop, state, batch)
        if self.sees_every_step and stage == "train" and stage in self._live:
            self._do(state, "at the start of a batch", self._see_batch, loop, state, batch, batch_idx)

    def _open_batch(self, loop: Loop, state: W, batch: Any) -> None:
        if state.stage == "train":
            self._follow(loop, state)
        self._begin_batch(loop, state, batch)

    def before_backward(self, loop: Loop, loss: Tensor) -> None:
        """Call `_see_loss` if the callback sees every step, then `_before_backward` if the batch is due."""
        state = self._live.get("train")
        if state is not None and self.sees_every_step:
            self._do(state, "before the backward pass", self._see_loss, loop, state, loss)
        if state is not None and state.is_due and state.sees_backward:
            self._do(state, "before the backward pass", self._before_backward, state)

    def after_backward(self, loop: Loop) -> None:
        """Call `_see_gradients` if the callback sees every step, then `_after_backward` if the batch is due."""
        state = self._live.get("train")
        if state is not None and self.sees_every_step:
            self._do(state, "after the backward pass", self._see_gradients, loop, state)
        if state is not None and state.is_due and state.sees_backward:
            self._do(state, "after the backward pass", self._after_backward, state)

    def before_optimizer_step(self, loop: Loop, optimizer: Optimizer) -> None:
        """Call `_see_step` if the callback sees every step, then `_before_optimizer_step` if the batch is due."""
        state = self._live.get("train")
        if state is not None and self.sees_every_step:
            self._do(state, "before the optimizer step", self._see_step, loop, state, optimizer)
        if state is not None and state.is_due and state.sees_steps:
            self._do(state, "before the optimizer step", self._before_optimizer_step, loop, state, optimizer)

    @property
    def is_observing(self) -> bool:
        """Whether a batch of the training is being watched."""
        state = self._live.get("train")
        return state is not None and state.is_due

    def observe(self, on: bool) -> None:
        """See `StageState.observe`."""
        for state in list(self._live.values()):
            if state.is_due:
                self._do(state, "in the middle of a batch", state.observe, on)

    def end_batch(self, loop: Loop, stage: str) -> None:
        """Call `_see_batch_end` if the callback sees every step, then `_end_batch` if the batch was due."""
        state = self._live.get(stage)
        if state is None:
            return
        if self.sees_every_step and stage == "train":
            self._do(state, "at the end of a batch", self._see_batch_end, loop, state)
        if state.is_due and stage in self._live:
            state.is_due = False
            self._do(state, "at the end of a batch", self._close_batch, loop, state)

    def _close_batch(self, loop: Loop, state: W) -> None:
        has_stepped = state.stage != "train" or not loop.is_accumulating
        if not self.changes_tensors:
            state.is_open = False
            state.until_batch_end.close()
        self._end_batch(loop, state, has_stepped)

    def leave_batch(self) -> None:
        """Run what the worker has handed over, then stop watching the batch before and remove its hooks.

        Hooks that change tensors are always removed here. `_end_batch` is not called.
        """
        if self._worker.tasks:
            self._catch_up()
        for state in list(self._live.values()):
            state.is_due = False
            if state.is_open:
                state.is_open = False
                self._do(state, "at the end of a batch", state.until_batch_end.close)

    @timed
    def _catch_up(self) -> None:
        self._worker.catch_up()

    @timed
    def end_epoch(self, loop: Loop) -> None:
        """Undo what is left of a batch: if the module ends an epoch early, its last batch has no end hook."""
        self.leave_batch()
        state = self._live.get("train")
        if state is not None and self.sees_every_step:
            self._do(state, "at the end of a batch", self._see_batch_end, loop, state)

    @timed
    def end_training(self, loop: Loop) -> None:
        """Wait for the worker, then call `_end_training` for each stage."""
        self._worker.settle()
        for state in list(self._live.values()):
            self._do(state, "at the end of the training", self._end_training, loop, state)

    @timed
    def begin_evaluation(self, loop: Loop) -> None:
        """See `_begin_evaluation`."""
        if self._budget is not None:
            self._budget.pause()
        self._start_evaluation(loop)

    def _start_evaluation(self, loop: Loop) -> None:
        state = self._live.get(loop.stage)
        if state is not None:
            self._do(state, "at the start of an evaluation", self._open_evaluation, loop, state)

    def _open_evaluation(self, loop: Loop, state: W) -> None:
        self._follow(loop, state)
        self._begin_evaluation(loop, state)

    @timed
    def end_evaluation(self, loop: Loop) -> None:
        """See `_end_evaluation`."""
        self.leave_batch()
        state = self._live.get(loop.stage)
        if state is not None:
            self._do(state, "at the end of an evaluation", self._end_evaluation, loop, state)
        if self._ranks is None:  # other ranks may still be evaluating
            self._worker.settle()

    def _start(self, loop: Loop, running: Set[str]) -> None:
        """Begin those of the callback's stages that are to run."""
        self._end_all()
        self._reset()
        selection, decision = self._decide(loop)
        if decision.reason:
            inform(f"{self._name} {self.verb} nothing: {decision.reason}.")
        elif self._takes_part(loop) and self._is_connected(loop):
            in_thread = has_own_thread(loop.device) or self._ranks is not None
            if self._ranks is not None:  # where one callback has waited in vain, the next need not wait as long
                others = (one.patience for one in self._together(loop) if one.patience is not None)
                self.patience = next(others, Patience(MAX_WAIT_SECONDS))
            self._worker = Worker(f"hookboard {self._name}", in_thread, self.patience)
            self.share = OverheadShare()
            self.share.begin(one.clock for one in self._together(loop))
            self._budget = None if self.max_overhead is None else Budget(self.max_overhead, self.clock)
            said: set[str] = set()
            for stage in decision.stages:
                if stage in running:
                    loggers, layout = Loggers(loop.loggers, self._name), dict(loop.model.named_modules())
                    state = self.state_class(stage, decision.every_n_steps, loggers, selection, layout, said)
                    self._prepare(loop, state)
                    self._live[stage] = state
                    self._attach(loop, state)

    def _is_connected(self, loop: Loop) -> bool:
        """Connect the ranks, if they are to merge what they measure; a warning says why they cannot be."""
        if self._merges(loop):
            self._ranks, why_not = connected()
            if why_not:
                rank_zero_warn(f"{self._name} {self.verb} nothing: {why_not}.")
            return not why_not
        return True

    def _decide(self, loop: Loop) -> tuple[Selection, Decision]:
        selection, reason, said, failure = Selection(), None, None, None
        must_agree = loop.world_size > 1 and self._is_collective(loop) and has_process_group()
        try:
            selection = self._select(loop.model)
            reason = self._why_not(loop)
        except NothingToSelectError as nothing:
            reason = str(nothing)
        except ValueError as error:
            said, failure = f"{self._name} could not start: {error}", ValueError(f"{self._name}: {error}")
            if not must_agree:
                raise failure from error
        mine = Decision(reason, int(self._cadence(loop)), self._stages(loop), said)
        decision = agreed(mine) if must_agree else mine
        if failure:
            raise failure
        return selection, decision

    def _follow(self, loop: Loop, state: W) -> None:
        """If modules of the model were replaced, watch the new ones, and warn once."""
        layout = dict(loop.model.named_modules())
        if is_same(layout, state.layout):
            return
        state.layout = layout
        old = state.selection
        try:
            state.selection = self._select(loop.model)
        except ValueError:  # what the user named is no longer there
            state.selection = old.what_is_left(loop.model)
        changed = changes(old, state.selection)
        if changed:
            state.until_end.close()
            self._attach(loop, state)
        self._say_changed(state, changed, loop.model)

    def _say_changed(self, state: W, changed: dict[str, str], model: nn.Module) -> None:
        fresh = {name: kind for name, kind in changed.items() if name not in state.said}
        state.said.update(fresh)
        if fresh:
            rank_zero_warn(
                f"{self._name}: the model has changed during the fit and is watched as it is now; "
                f"{said_of_changes(fresh, names_in(model))}."
            )

    @property
    def is_in_training(self) -> bool:
        """Whether it watches a training now."""
        return "train" in self._live

    def _overhead(self, loop: Loop, state: W) -> dict[str, float]:
        """Return the share of time that all callbacks took since the last look, by tag; {} if there is none to log."""
        if state.stage != "train":
            return {}
        every = self._together(loop)
        for one in every:
            if one.tells_overhead and one.is_in_training:
                share = one.share.take(loop.logged_step, [each.clock for each in every])
                return {} if share is None else {OVERHEAD: share}
        return {}

    def _together(self, loop: Loop) -> "list[HookboardCallback[Any]]":
        """Return all callbacks of the Trainer that have a clock."""
        every = [callback for callback in loop.callbacks if isinstance(callback, HookboardCallback)]
        return every if self in every else [self]  # a callback of the user's may hold it and call it

    def _keep_step(self, state: W) -> None:
        """Take the cadence that all ranks have found at the last look, so that they measure the same steps."""
        if self._ranks is not None:
            self._worker.settle()
            if state.wanted is not None:
                self._stretch(state, state.wanted)

    def _stretch(self, state: W, factor: int) -> None:
        """Stretch the cadence to this many times `every_n_steps` from now on, and say so the first time."""
        is_first, state.stretch = state.stretch == 1 and not state.is_stretch_said, factor
        if is_first and factor > 1 and self._budget is not None:
            state.is_stretch_said = True
            idle = f"each step between two looks {1e3 * self._budget.idle:.2g} ms, " if self._budget.idle else ""
            inform(
                f"{self._name} measures every {factor * state.every_n_steps} steps instead of {state.every_n_steps}: "
                f"a look takes {1e3 * (self._budget.look or 0):.3g} ms, {idle}a bare step "
                f"{1e3 * self._budget.step:.3g} ms, and max_overhead is {self._budget.share}. "
                "It may change with the time they take (this is said once)."
            )

    def _do(self, state: W, when: str, duty: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call the duty and time it; an error ends the stage with a warning, or is raised if it may stop the run.

        This is no context manager, which would take four calls instead of one: each step needs it several times.
        """
        clock = self.clock
        is_first = clock.began is None
        if is_first:
            clock.began = perf_counter()
        try:
            duty(*args, **kwargs)
        except Exception as error:
            if not self._may_go_on(state, when, error):
                raise
        finally:
            if is_first and clock.began is not None:
                clock.spent += perf_counter() - clock.began
                clock.began = None

    def _may_go_on(self, state: W, when: str, error: Exception) -> bool:
        """Handle an error of a callback: warn and end its stage. Returns False if the run must stop instead."""
        if isinstance(error, NothingToShowError):
            self._drop(state)
            rank_zero_warn(f"{self._name} {self.verb} nothing: {error}.")
            return True
        if self.may_stop_the_run:
            return False
        is_first, state.has_fault = not state.has_fault, True
        self._drop(state)
        if is_first:
            warn_switched_off(f"{self._name} ({when})", error)
        return True

    def _drop(self, state: W) -> None:
        # Where one rank stops, none can merge any longer, in no stage.
        for each in (ended := [state] if self._ranks is None else [state, *self._live.values()]):
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
        """Return a function that calls `exchange`, by `Ranks.at` if there are several ranks; any thread may call it."""
        return exchange if self._ranks is None else functools.partial(self._ranks.at, point, exchange)

    def _leave_to_worker(self, state: W, job: Callable[[], None], when: str) -> None:
        """Do a job for which training need not wait. An error in it is handled as one of the callback.

        Args:
            state: what it is done for.
            job: reads nothing of the Trainer, the model, or an `experiment` that a logger still has to make.
            when: said of a fault.
        """

        def on_fault(error: BaseException) -> None:
            if not isinstance(error, Exception) or not self._may_go_on(state, when, error):
                raise error

        self._worker.do(job, on_fault)

    def _end_all(self) -> None:
        try:
            self._worker.close()
        finally:
            self._disconnect()
            live, self._live = self._live, {}
            for state in live.values():
                try:
                    self._leave(state)
                finally:
                    _undo(state)

    def _end_run(self, loop: Loop) -> None:
        """End all stages, and keep what they know for a checkpoint that is written after the fit."""
        self._loaded = None
        try:
            with suppress(Exception):  # a fault that has ended the fit may be one here too
                self._kept = self._entry(loop)
            self._end_all()
        finally:
            let_go_of_model(self)

    def _entry(self, loop: Loop) -> dict[str, Any] | None:
        """Return what goes into a checkpoint now; None if there is nothing. After the fit, of its end."""
        if not self._live or not loop.is_fitting:
            return self._kept
        self._worker.wait()
        return checkpoint_entry(self._name, self._arguments(), self._live, loop.batch_to_repeat)

    def _arguments(self) -> dict[str, str]:
        """Return the arguments that decide what it knows of a run, as text, with the cadence that is in force."""
        return arguments_of(self, next(iter(self._live.values())).every_n_steps)

    @property
    def _name(self) -> str:
        return type(self).__name__


def _undo(state: StageState) -> None:
    try:
        with state.until_end, state.until_batch_end:
            state.is_due = False
    except Exception as error:
        rank_zero_warn(f"not all hooks of a callback could be removed: {type(error).__name__}: {error}")
