"""`HookboardCallback`: which method of a callback is called at which point of a run.

    on_fit_start, or on_<loop>_start of a loop by itself   _select, _why_not; _prepare and _attach for each stage
        on_train_start, on_<loop>_start                    _begin_training, _resume; _begin_evaluation
            on_<stage>_batch_start                         _wants; if that is True, _begin_batch
                on_before_backward, on_after_backward      _before_backward, _after_backward
                on_before_optimizer_step                   _before_optimizer_step
            on_<stage>_batch_end                           until_batch_end is closed; _end_batch
        on_<loop>_end, on_train_end                        _end_evaluation, _end_training
    teardown or on_exception                               all hooks are removed
    on_save_checkpoint, whenever that is                   _saved

The hooks on the left between the first line and the last two are those of `FirstCallback` and `LastCallback` in
`trainer.py`: no callback implements them itself. If a callback has `sees_every_step`, these methods are also called at
each training batch, due or not: _see_batch, _see_loss, _see_gradients, _see_step, _see_batch_end.

A callback has a `StageState` for each stage. Its two ExitStacks remove hooks and undo other changes: one when the batch
has ended, one when the stage ends. An error in a callback ends its stage, not the run.
"""

import math
from collections.abc import Callable, Set
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, NamedTuple, ParamSpec

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.optim import Optimizer

from hookboard.base.messages import alert, inform, rank_zero_warn, warn_switched_off
from hookboard.base.ranks import Ranks, connected, has_process_group
from hookboard.base.torch_private import modules_in, unseen
from hookboard.loops.callback_methods import (
    CallbackMethods,
    NothingToShowError,
    W,
    inform_of_many_tags,
    warn_of_equal_tags,
)
from hookboard.loops.loop import Loop
from hookboard.loops.stage_state import (
    Decision,
    Selection,
    agreed,
    changes,
    is_same,
    names_in,
    said_of_changes,
)
from hookboard.loops.trainer import TrainerLoop, let_go_of_model, without_trainer
from hookboard.model.selection import NothingToSelectError
from hookboard.writers import Loggers

P = ParamSpec("P")


KEY = "hookboard"
"""The key in a checkpoint, with an entry for each callback that has a state, in the order of the Trainer.

Lightning's own hook, `Callback.state_dict`, raises an error for two equal callbacks.
"""


class _Pending(NamedTuple):
    """What a due step has measured; see `HookboardCallback._do_later`."""

    state: Any
    when: str
    step: int
    read: Callable[[], None]


class _StateKey:
    """The key of a callback in checkpoints; on a class that was given in place of an object, it raises an error."""

    def __get__(self, callback: object | None, kind: type) -> str:
        if callback is None:  # this error lets `dir` and `inspect.getmembers` go on
            raise AttributeError(
                f"callbacks=[{kind.__name__}]: pass an instance, as in {kind.__name__}(), not the class."
            )
        return kind.__qualname__


class HookboardCallback(CallbackMethods[W]):
    """Base of all callbacks. A loop calls its public methods; these call the methods that a subclass overrides."""

    state_key = _StateKey()

    def __init__(self) -> None:
        super().__init__()
        self._live: dict[str, W] = {}
        """The state of each stage that is measured in the present run, by name of the stage."""
        self._pending: list[_Pending] = []
        """What due steps have measured and is still to be read, in the order of the steps."""
        self._reads_later = False
        """True if what a due step has measured is read at the end of the next batch: a device or other ranks are waited
        for then, and there is less to wait for."""
        self._watched: Callable[[], Loop | None] | None = None
        """A weak reference to the loop that it has joined last; None before."""
        self._ranks: Ranks | None = None
        """The ranks that merge what they measure, during a run; None if nothing is merged."""
        self._kept: Any = None
        """What `_saved` returned at the end of the last fit, for a checkpoint that is written after it."""
        self._loaded: Any = None
        """The entries of the checkpoint that the fit resumes from, until they are restored; None without one."""
        vars(self)["state_key"] = type(self).__qualname__  # Lightning asks for it before each hook

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes that are configuration; those of a run have their initial values in a copy."""
        self._catch_up()
        nothing = dict.fromkeys(["_watched", "_ranks", "_kept", "_loaded"])
        return without_trainer(self.__dict__) | nothing | {"_live": {}, "_pending": []}

    def _catch_up(self) -> None:
        """Read what is pending, because it is asked for; not with several ranks, which may not all be asked."""
        if self._ranks is None:
            self.finish()

    # The hooks that a Trainer calls. `FirstCallback` and `LastCallback` have the others.

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Drop the checkpoint entry of the last fit when another starts."""
        if TrainerLoop(trainer).is_fitting:
            self._kept = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """See `begin_fit`."""
        self.call("begin_fit", TrainerLoop(trainer))

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """See `begin_evaluation_run`, which does nothing within a fit: there `LastCallback` begins the evaluation."""
        self.call("begin_evaluation_run", TrainerLoop(trainer))

    on_test_start = on_predict_start = on_validation_start

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """End the run, see `break_off`: Lightning does not call `teardown` after a failure."""
        self.call("break_off", TrainerLoop(trainer))

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """End the run, see `end_run`."""
        self.call("end_run", TrainerLoop(trainer))

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Append this callback's entry to the checkpoint on rank 0.

        An error only logs a line. Nothing is saved while the callback takes part in the run of another Trainer.
        """
        loop = TrainerLoop(trainer)
        try:
            self.finish()  # on all ranks: rank 0 would wait for those that wait for the checkpoint
            if loop.is_rank_zero and not self._is_taken(loop):
                saved = self._saved() if self._live and loop.is_fitting else self._kept
                if saved is not None:
                    checkpoint.setdefault(KEY, []).append({"callback": self._name, "state": saved})
        except Exception as error:  # the user's checkpoint is written all the same
            alert(f"the state of {self._name} was not saved in the checkpoint ({type(error).__name__}: {error})")

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Keep the checkpoint's entries until the training starts: some strategies load it after `on_fit_start`."""
        loop = TrainerLoop(trainer)
        if loop.is_fitting and not self._is_taken(loop):
            # Lightning's learning rate finder saves and loads a checkpoint of its own, which has no entries yet.
            self._loaded = checkpoint.get(KEY, [] if self._loaded is None else self._loaded)

    # The methods that a loop calls, by `call`.

    def call(self, method: str, *given: Any) -> None:
        """Call one of the methods below; a fault in it ends what this callback measures, with one warning, not the run.

        Raises:
            ValueError: the configuration does not fit the model.
            Exception: any error of a callback that may stop the run.
        """
        is_start, was_live = method in ("begin_fit", "begin_evaluation_run"), bool(self._live)
        try:
            getattr(self, method)(*given)
        except Exception as error:
            if self.may_stop_the_run or (is_start and isinstance(error, ValueError)):
                raise
            for state in list(self._live.values()):
                with suppress(Exception):
                    self._drop(state)
            if is_start or was_live:
                warn_switched_off(self._name, error)

    def begin_fit(self, loop: Loop) -> None:
        """Join a training run: select the modules, and attach the hooks of training and validation.

        Raises:
            ValueError: the configuration does not fit the model, such as a pattern that matches no module.
        """
        if self._adopt(loop):
            loop.join(self)
            self._start(loop, {"train", "validate"})
            training = self._live.get("train")
            if training is not None and not training.every_n_steps and hasattr(self, "every_n_steps"):
                inform(f"{self._name} {self.verb} no training step: log_every_n_steps is 0. Pass every_n_steps.")
            inform_of_many_tags(self)
            warn_of_equal_tags(self, loop)

    def begin_evaluation_run(self, loop: Loop) -> None:
        """Join an evaluation outside of a fit: select modules, attach hooks, and begin it; no effect within a fit."""
        if not loop.is_fitting and self._adopt(loop):
            loop.join(self)
            stage = loop.stage
            if stage in self._stages(loop):
                self._start(loop, {stage})
            warn_of_equal_tags(self, loop)
            self.begin_evaluation(loop)

    @unseen
    def end_run(self, loop: Loop) -> None:
        """Remove all hooks and leave the loop; no effect if the callback takes part in the run of another loop."""
        if self._is_taken(loop):
            return
        self._loaded = None
        try:
            with suppress(Exception):  # the error that has ended the fit may occur here too
                self._kept = self._saved() if self._live and loop.is_fitting else self._kept
        finally:  # whatever comes: Ctrl-C may
            try:
                self._end_all()
            finally:
                let_go_of_model(self)
                loop.leave(self)

    def break_off(self, loop: Loop) -> None:
        """End the run after an error, see `end_run`; other ranks, which may not have failed, are not waited for."""
        if self._ranks is not None and not self._is_taken(loop):
            self._leave_ranks()
        self.end_run(loop)

    def _other(self, loop: Loop) -> Loop | None:
        """Return the loop that this callback joined last if it still exists and is not `loop`; otherwise None."""
        watched = None if self._watched is None else self._watched()
        return None if watched == loop else watched

    def _is_taken(self, loop: Loop) -> bool:
        """Return True if this callback takes part in the run of another loop that has not ended."""
        other = self._other(loop) if self._live else None
        return other is not None and other.is_running

    def _adopt(self, loop: Loop) -> bool:
        """Leave the last run for that of `loop` and return True; warn and return False if the last has not ended."""
        if self._is_taken(loop):
            rank_zero_warn(
                f"{self._name} {self.verb} nothing in this run, because it is still attached to another Trainer. "
                "Create a callback for each Trainer."
            )
            return False
        other = self._other(loop)
        if other is not None:
            other.leave(self)
        self._watched = loop.weakly()
        return True

    def begin_training(self, loop: Loop) -> None:
        """Call `_begin_training` if training is measured, then restore the state from a loaded checkpoint."""
        state = self._live.get("train")
        if state is not None:
            self._do(state, "at the start of training", self._begin_training, loop, state)
        self._restore(loop)

    def _restore(self, loop: Loop) -> None:
        """Go on from the first entry of this class in a loaded checkpoint, and take it out; an error is one line."""
        loaded, self._loaded = self._loaded, None
        if not loaded or not self._live:
            return
        try:
            mine = next((entry for entry in loaded if entry["callback"] == self._name), None)
            if mine is not None:
                loaded[:] = [entry for entry in loaded if entry is not mine]  # the next of this class has the next one
                self._resume(mine["state"])
        except Exception as error:  # a damaged or foreign entry must not keep the fit from resuming
            said = f"{type(error).__name__}: {error}"
            alert(f"{self._name} starts over, without its state from the checkpoint ({said}).")

    def begin_batch(self, loop: Loop, stage: str, batch: Any, batch_idx: int, dataloader_idx: int) -> None:
        """Call `_begin_batch` if `_wants` the batch, and `_see_batch` if the callback sees every step."""
        state = self._live.get(stage)
        if state is None:
            return
        state.is_due = self._wants(loop, state, batch_idx, dataloader_idx)
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

    def observe(self, on: bool) -> None:
        """Switch the hooks of the running batch on or off, see `StageState.observe`."""
        for state in list(self._live.values()):
            if state.is_due:
                self._do(state, "in the middle of a batch", state.observe, on)

    def end_batch(self, loop: Loop, stage: str) -> None:
        """Call `_see_batch_end` if every step is seen; after a due batch, remove its hooks and call `_end_batch`.

        Hooks that change tensors stay until `leave_batch`.
        """
        if stage == "train":
            self.finish()
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
        """Remove the hooks that are left of the previous batch.

        These are hooks that change tensors, and all hooks of a batch that did not end. It gets no `_end_batch`, and
        what was measured in its step is dropped: it may be tried again, as after a lack of memory.
        """
        for state in list(self._live.values()):
            if state.is_due and state.stage == "train":
                self._do(state, "after a batch that did not end", state.forget)
            state.is_due = False
            if state.is_open:
                state.is_open = False
                self._do(state, "at the end of a batch", state.until_batch_end.close)

    def end_epoch(self, loop: Loop) -> None:
        """Read what is pending, then call `leave_batch`, and `_see_batch_end` of a callback that sees every step."""
        self.finish()
        self.leave_batch()
        state = self._live.get("train")
        if state is not None and self.sees_every_step:
            self._do(state, "at the end of a batch", self._see_batch_end, loop, state)

    def end_training(self, loop: Loop) -> None:
        """Read what is pending, then call `_end_training` for each stage."""
        self.finish()
        for state in list(self._live.values()):
            self._do(state, "at the end of training", self._end_training, loop, state)

    def begin_evaluation(self, loop: Loop) -> None:
        """Begin an evaluation: read what is pending, and call `_begin_evaluation` if it is measured."""
        self._catch_up()
        state = self._live.get(loop.stage)
        if state is not None:
            self._do(state, "at the start of an evaluation", self._open_evaluation, loop, state)

    def _open_evaluation(self, loop: Loop, state: W) -> None:
        state.forget()  # of an evaluation that did not end
        self._follow(loop, state)
        self._begin_evaluation(loop, state)

    def end_evaluation(self, loop: Loop) -> None:
        """Call `leave_batch`, then `_end_evaluation` if the stage is live; read what is pending unless ranks merge."""
        self.leave_batch()
        state = self._live.get(loop.stage)
        if state is not None:
            self._do(state, "at the end of an evaluation", self._end_evaluation, loop, state)
        self._catch_up()  # with ranks at the end of the next batch: one of them alone may evaluate

    @unseen
    def _start(self, loop: Loop, running: Set[str]) -> None:
        """Select the modules, and attach the hooks of those stages of the callback that are in `running`."""
        self._end_all()
        self._reset()
        selection, decision = self._decide(loop)
        if decision.reason:
            inform(f"{self._name} {self.verb} nothing: {decision.reason}.")
        elif self._takes_part(loop) and self._connect_ranks(loop):
            self._reads_later = self._ranks is not None or loop.device.type != "cpu"
            said: set[str] = set()
            for stage in decision.stages:
                if stage in running:
                    loggers, layout = Loggers(loop.loggers, self._name), modules_in(loop.model)
                    state = self.state_class(stage, decision.every_n_steps, loggers, selection, layout, said)
                    self._do(state, "at the start of the run", self._open_stage, loop, state)
                    if state.has_fault:
                        break

    def _open_stage(self, loop: Loop, state: W) -> None:
        self._prepare(loop, state)
        self._live[state.stage] = state
        self._attach(loop, state)

    def _connect_ranks(self, loop: Loop) -> bool:
        """Connect the ranks if they merge what they measure; warn and return False if they cannot be connected."""
        if self._merges(loop):
            self._ranks, why_not = connected(loop.device)
            if why_not:
                rank_zero_warn(f"{self._name} {self.verb} nothing: {why_not}.")
            return not why_not
        return True

    def _decide(self, loop: Loop) -> tuple[Selection, Decision]:
        """Return the selected modules, and the decision of this rank or, if all ranks measure, of rank 0.

        Raises:
            ValueError: the configuration does not fit the model, here or on another rank.
        """
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
        decision = agreed(mine, loop.device) if must_agree else mine
        if failure:
            raise failure
        return selection, decision

    def _follow(self, loop: Loop, state: W) -> None:
        """If the model's modules have changed since the last call, select again; if that differs, attach and warn."""
        layout = modules_in(loop.model)
        if is_same(layout, state.layout):
            return
        state.layout = layout
        old = state.selection
        try:
            state.selection = self._select(loop.model)
        except ValueError:  # no module matches the patterns any longer
            state.selection = old.what_is_left(loop.model)
        changed = changes(old, state.selection)
        if changed:
            state.until_end.close()
            self._attach(loop, state)
        self._say_changed(state, changed, loop.model)

    def _say_changed(self, state: W, changed: dict[str, str], model: nn.Module) -> None:
        """Warn about modules or parameters that were replaced; each name is reported once in a run."""
        fresh = {name: kind for name, kind in changed.items() if name not in state.said}
        state.said.update(fresh)
        if fresh:
            rank_zero_warn(
                f"{self._name}: the model changed during the fit and is watched as it is now; "
                f"{said_of_changes(fresh, names_in(model))}."
            )

    def _do(self, state: W, when: str, method: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call a method; an error ends the stage with a warning, or is raised if it may stop the run.

        Args:
            state: the stage that an error ends.
            when: the point of the run, used in the warning, such as "at the end of a batch".
            method: the method, called with `args` and `kwargs`.
            args: positional arguments.
            kwargs: keyword arguments.
        """
        try:
            (method if self.calls_the_model else unseen(method))(*args, **kwargs)
        except Exception as error:  # ours: the run goes on, unless it is meant to stop
            if not self._end_stage_after(state, when, error):
                raise

    def _end_stage_after(self, state: W, when: str, error: Exception) -> bool:
        """End the stage with one warning, and return True; return False if the error must stop the run instead."""
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
        """End a stage after an error; if ranks merge, end all stages, because other ranks cannot merge without us."""
        ended = [state] if self._ranks is None else [state, *self._live.values()]
        for each in ended:
            each.has_fault = True
        ended = [each for each in ended if self._live.pop(each.stage, None) is not None]
        if self._ranks is None:
            self.finish()
        else:
            self._leave_ranks()
        for each in ended:
            self._leave(each)
            each.remove_hooks()

    def _leave_ranks(self) -> None:
        """Merge nothing any more, and tell the other ranks; what is pending cannot be merged then, and is dropped."""
        ranks, self._ranks = self._ranks, None
        self._pending.clear()
        if ranks is not None:
            ranks.leave()

    def _all_ranks_at(self, point: str) -> AbstractContextManager[None]:
        """Return `Ranks.at`, in which ranks merge, or a context that does nothing."""
        return nullcontext() if self._ranks is None else self._ranks.at(point)

    def _do_later(self, state: W, read: Callable[[], None], step: int, when: str) -> None:
        """Read what a due step has measured: at once if that waits for nothing, else at the end of the next batch.

        An error is handled as in `_do`.

        Args:
            state: the stage that an error ends.
            read: reads it; it asks neither the Trainer nor the model, because both may have changed.
            step: the optimizer step of what it logs.
            when: the point of the run, used in the warning.
        """
        self._pending.append(_Pending(state, when, step, read))
        if not self._reads_later:
            self.finish()

    def finish(self) -> None:
        """Read what is pending, and wait for it; in the same order on every rank."""
        while self._pending:
            state, when, _, read = self._pending.pop(0)
            self._do(state, when, read)

    @property
    def first_pending_step(self) -> float:
        """The earliest step that is still to be read; infinite if there is none."""
        return min((each.step for each in self._pending), default=math.inf)

    def _end_all(self) -> None:
        """Read what is pending, disconnect the ranks, and end all stages, whatever fails."""
        try:
            self.finish()
        finally:
            if self._ranks is not None:
                self._leave_ranks()
            for stage, state in list(self._live.items()):
                try:
                    self._leave(state)
                finally:
                    state.remove_hooks()
                    self._live.pop(stage, None)

    @property
    def _name(self) -> str:
        """The name of its class, used in messages."""
        return type(self).__name__
