"""`HookboardCallback`: the base class of all callbacks, which a loop tells the events of a run; the state of a stage.

    a Trainer's hook                    method of the `Loop`   methods of the callback
    on_fit_start, or on_<stage>_start                          start: _select, _why_not; _prepare and _attach for each
      outside of a fit                                         stage
    on_train_start                      begin_training         _begin_training, _resume
    on_<stage>_start                    begin_evaluation       _begin_evaluation
    on_<stage>_batch_start              begin_batch            _wants; _begin_batch
    on_before_backward                  tell                   _before_backward
    on_after_backward                   tell                   _after_backward
    on_before_optimizer_step            tell                   _before_optimizer_step
    on_<stage>_batch_end                end_batch              finish, which reads what earlier steps have put off;
                                                               until_batch_end is closed; _end_batch
    the next batch, or the epoch's end  leave_batch            state.forget, where the batch has not ended
    on_<stage>_end                      end_evaluation         _end_evaluation
    on_train_end                        end_training           _end_training
    teardown or on_exception            end_run                _leave; all hooks are removed

`call_safely` keeps errors away from training: an error ends all stages of its callback, not the run.
"""

import inspect
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.optim import Optimizer

from hookboard.base.messages import alert, inform, rank_zero_warn, warn_switched_off
from hookboard.base.ranks import Ranks, gathered, has_process_group
from hookboard.base.torch_private import modules_in, run_unseen, unseen
from hookboard.loops.loop import Loop
from hookboard.loops.trainer import SET_BY_LIGHTNING, TrainerLoop
from hookboard.model.patterns import folded
from hookboard.model.selection import NothingToSelectError, named_submodules
from hookboard.model.sites import Role, Stage
from hookboard.model.state import weights_of
from hookboard.writers.loggers import Loggers

KEY = "hookboard"
"""The key in a checkpoint, with an entry for each callback that has a state, in the order of the Trainer. Lightning's
own hook, `Callback.state_dict`, raises an error for two equal callbacks."""


@dataclass(frozen=True)
class Selection:
    """The modules of a model that a callback measures or changes, by dotted name."""

    modules: dict[str, nn.Module] = field(default_factory=dict)  # whose inputs, outputs, gradients it reads or changes
    owners: dict[str, nn.Module] = field(default_factory=dict)  # whose own parameters it reads

    def is_same(self, other: "Selection") -> bool:
        """Return True if both have the same modules."""
        return are_same(self.modules, other.modules) and are_same(self.owners, other.owners)


def are_same(one: Mapping[str, nn.Module], other: Mapping[str, nn.Module]) -> bool:
    """Return True if both have the same modules, compared by `is`: a module's class may have an `__eq__`."""
    return one.keys() == other.keys() and all(map(operator.is_, one.values(), other.values()))


@dataclass
class StageState:
    """The state of a callback in one stage of a run."""

    stage: Stage
    every_n_steps: int  # from one due step to the next; 0 if no step is due
    loggers: Loggers
    selection: Selection
    layout: dict[str, nn.Module]  # all modules of the model at the time of the selection
    is_due: bool = False  # while a batch runs that is measured
    has_fault: bool = False  # an error has ended the callback
    until_end: ExitStack = field(default_factory=ExitStack)  # removes the hooks of the stage, and undoes other changes
    until_batch_end: ExitStack = field(default_factory=ExitStack)  # the same for a measured batch

    def forget(self) -> None:
        """Drop what was measured in a step or an evaluation that did not end. Here it does nothing."""


W = TypeVar("W", bound=StageState)


class NothingToShowError(ValueError):
    """Raised by a callback if the model or its data have nothing that it can show: it ends with one warning."""


class HookboardCallback(Callback, ABC, Generic[W]):
    """Base of all callbacks. A loop tells it the events of a run; for these it calls methods that a subclass has."""

    state_class: type[W]  # the class of the state that it has for each stage
    verb = "shows"  # what it does, in messages: "KernelLogger shows nothing: ..."
    changes_tensors = False
    """True if its hooks change tensors: it begins a batch before callbacks that measure, and its hooks stay until the
    next batch begins, so that other callbacks find the changed model when they handle the end of the batch."""
    calls_the_model = False  # it calls the model, which may need the present modes of torch; others run outside of them
    may_stop_the_run = False  # an error of this callback stops the run; otherwise it gives a warning
    needs_logger = True  # it does nothing in a run without a logger
    sees_every_step = False  # its methods are called at each training batch, due or not; `state.is_due` tells which

    def __init__(self) -> None:
        super().__init__()
        self._name = type(self).__name__  # what messages call it
        self._live: dict[str, W] = {}  # the state of each stage that is measured in the present run, by stage
        self._pending: list[tuple[W, Callable[[], None]]] = []  # measurements of due steps that are still to be read
        # True if reading would wait for a device or other ranks: it is put off to the end of the next batch, or epoch.
        self._reads_later = False
        self._has_said_changed = False
        self._loop: Loop | None = None  # None outside of a run
        self._ranks: Ranks | None = None  # those that merge what they measure, during a run; None if nothing is merged
        self._kept: Any = None  # what `_saved` returned at the end of the last fit, for a checkpoint written after it
        self._loaded: Any = None  # the entries of the checkpoint that the fit resumes from, until they are restored

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes that are configuration; those of a run have their initial values in a copy."""
        self._catch_up()
        own = {name: value for name, value in vars(self).items() if name not in SET_BY_LIGHTNING}
        return own | {"_live": {}, "_pending": []} | dict.fromkeys(["_loop", "_ranks", "_kept", "_loaded"])

    def __repr__(self) -> str:
        """Return the call that makes it: its class, and the arguments that differ from their defaults.

        >>> from hookboard import HealthMonitor
        >>> HealthMonitor("net.*", window=4)
        HealthMonitor(modules='net.*', window=4)
        """
        wanted = inspect.signature(type(self)).parameters
        values = {name: getattr(self, name, parameter.default) for name, parameter in wanted.items()}
        shown = (f"{name}={value!r}" for name, value in values.items() if repr(value) != repr(wanted[name].default))
        return f"{type(self).__name__}({', '.join(shown)})"

    # What it measures, and when.

    @abstractmethod
    def _stages(self, loop: Loop) -> Sequence[Stage]:
        """Return the stages in which it measures."""

    @abstractmethod
    def _select(self, model: nn.Module) -> Selection:
        """Return the modules that it measures; ValueError if the configuration does not fit the model."""
        # NothingToSelectError says that it has none by default: one line is logged, and the callback does nothing.

    def _prepare(self, loop: Loop, state: W) -> None:
        """Set the fields that this callback adds to the state of a stage. Called before `_attach`."""

    def _reset(self) -> None:
        """Clear the results of the last run. Called when another run starts."""

    def _why_not(self, loop: Loop) -> str | None:
        """Return why it cannot measure in this run, as a clause, or None; ValueError if its configuration is wrong."""
        return "there is no logger" if self.needs_logger and not loop.loggers else None

    def _is_collective(self, loop: Loop) -> bool:
        """Return True if all ranks measure: then rank 0 decides for all ranks in which stages and how often."""
        return False

    def _merges(self, loop: Loop) -> bool:
        """Return True if all ranks merge what they measure. If so, an error on one ends the measuring on all."""
        return False

    def _takes_part(self, loop: Loop) -> bool:
        """Return True if this rank measures."""
        return loop.is_rank_zero or self._is_collective(loop)

    def _cadence(self, loop: Loop) -> int:
        """Return the number of optimizer steps from one due step to the next; 0 for no step."""
        return loop.log_every_n_steps

    # What it does at each event. With `sees_every_step` the methods on training batches are called at each of them.

    def _attach(self, loop: Loop, state: W) -> None:
        """Attach the hooks of the whole stage, to be removed by `state.until_end`; again for another selection."""

    def _begin_training(self, loop: Loop, state: W) -> None:
        """Called before the first batch of a fit. A checkpoint's weights are loaded by now, its `state` is not yet."""

    def _begin_evaluation(self, loop: Loop, state: W) -> None:
        """Called before the first batch of an evaluation."""

    def _wants(self, loop: Loop, state: W, batch_idx: int, dataloader_idx: int) -> bool:
        """Return True if this batch is measured. By default: in training if its step is due, in evaluations always."""
        return state.stage != "train" or is_due(loop.logged_step, state.every_n_steps)

    @abstractmethod
    def _begin_batch(self, loop: Loop, state: W, batch: Any, batch_idx: int) -> None:
        """Called before a batch that is measured; it registers the removal of its hooks in `state.until_batch_end`."""

    def _before_backward(self, loop: Loop, state: W, loss: Tensor | None) -> None:
        """Called before each backward pass of a measured training batch."""
        # A GradScaler has scaled the loss. It is None where the backward pass starts from several tensors.

    def _after_backward(self, loop: Loop, state: W) -> None:
        """Called after each backward pass of a measured training batch."""

    def _before_optimizer_step(self, loop: Loop, state: W, optimizer: Optimizer) -> None:
        """Called before a step of this optimizer, in a measured training batch."""

    def _end_batch(self, loop: Loop, state: W, has_stepped: bool) -> None:
        """Called after a measured batch; `has_stepped` is False if gradients are only accumulated, else True."""

    def _end_evaluation(self, loop: Loop, state: W) -> None:
        """Called after the last batch of an evaluation."""

    def _end_training(self, loop: Loop, state: W) -> None:
        """Called after the last batch of a fit, for each stage."""

    def _leave(self, state: W) -> None:
        """Called before the hooks of a stage are removed, also after an error. Must not raise."""

    def _saved(self) -> Any:
        """Return a few plain numbers and texts for the checkpoint, from which `_resume` goes on; None for nothing."""
        return None

    def _resume(self, saved: Any) -> None:
        """Go on from what `_saved` returned when the checkpoint was written."""

    # The hooks that a Trainer calls; all others are those of `TrainerLoop`.

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """See `start`."""
        self.start(TrainerLoop.of(trainer), ["train", "validate"])

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Outside of a fit: see `start`."""
        loop = TrainerLoop.of(trainer)
        if not loop.is_fitting:
            self.start(loop, [loop.stage])

    on_test_start = on_predict_start = on_validation_start

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Append this callback's entry to the checkpoint on rank 0; an error only logs a line."""
        try:
            self.finish()  # on all ranks: rank 0 would wait for those that wait for the checkpoint
            saved = self._saved() if self._live else self._kept
            if saved is not None and trainer.is_global_zero:
                checkpoint.setdefault(KEY, []).append({"callback": self._name, "state": saved})
        except Exception as error:  # the user's checkpoint is written all the same
            alert(f"the state of {self._name} was not saved in the checkpoint ({type(error).__name__}: {error})")

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Keep the checkpoint's entries until the training starts: some strategies load it after `on_fit_start`."""
        # Lightning's learning rate finder saves and loads a checkpoint of its own, which has no entries yet.
        self._loaded = checkpoint.get(KEY, self._loaded)

    # What a loop calls.

    def start(self, loop: Loop, stages: Sequence[str]) -> None:
        """Join a run with these stages; ValueError if the configuration does not fit, or another run still goes on."""
        if self._loop is not None and self._loop is not loop:
            if self._loop.is_running:
                raise ValueError(f"{self._name} takes part in the run of another Trainer. Create one for each.")
            self._loop.leave(self)  # a run that was given up
        try:
            self._end_all()
            self._loop, self._has_said_changed = loop, False
            self._kept = None if loop.is_fitting else self._kept
            loop.join(self)
            self._reset()
            unseen(self._start)(loop, stages)
        except Exception as error:  # ours, unless a ValueError says what is wrong with the configuration
            if self.may_stop_the_run or isinstance(error, ValueError):
                raise
            warn_switched_off(self._name, error)
            self.end_run(loop, has_failed=True)

    def open_batch(self, loop: Loop, state: W, batch: Any, batch_idx: int, dataloader_idx: int) -> None:
        """Take part in a batch of this stage, if it is measured; select anew if the model has changed."""
        state.is_due = self._wants(loop, state, batch_idx, dataloader_idx)
        if state.is_due or (self.sees_every_step and state.stage == "train"):
            loop.in_batch.append((self, state))
            if state.is_due and state.stage == "train":
                self._follow(loop, state)
            self._begin_batch(loop, state, batch, batch_idx)

    def call_safely(self, state: W, method: Callable[..., object], *arguments: Any) -> None:
        """Call one of its methods; an error, or nothing to show, ends all its stages with a warning."""
        try:
            if self.calls_the_model:
                method(*arguments)
            else:
                run_unseen(method, arguments, {})
        except NothingToShowError as nothing:
            self._drop(state)
            rank_zero_warn(f"{self._name} {self.verb} nothing: {nothing}.")
        except Exception as error:  # ours
            if self.may_stop_the_run:
                raise
            if not state.has_fault:
                self._drop(state)
                warn_switched_off(self._name, error)

    @property
    def states(self) -> list[W]:
        """The state of each stage that is measured in the present run."""
        return list(self._live.values())

    def finish(self) -> None:
        """Read what is pending, and wait for it; in the same order on every rank."""
        while self._pending:
            self.call_safely(*self._pending.pop(0))

    @unseen
    def end_run(self, loop: Loop, has_failed: bool = False) -> None:
        """Remove all hooks and leave the loop; after an error without waiting for other ranks, which may go on."""
        if self._loop is not loop:  # it has left; after an interrupt in the middle of this it is called again
            return
        if has_failed:
            self._leave_ranks()
        try:
            with suppress(Exception):  # the error that has ended the fit may occur here too
                self._kept = self._saved() if self._live else self._kept
            self._end_all()
        except Exception as error:  # ours
            warn_switched_off(self._name, error)
        loop.leave(self)
        self._loop = self._loaded = None

    # How it does that.

    def open_training(self, loop: Loop, state: W) -> None:
        """Call `_begin_training`, then go on from the entry of a loaded checkpoint."""
        self._begin_training(loop, state)
        loaded, self._loaded = self._loaded, None
        try:
            mine = next((entry for entry in loaded or () if entry["callback"] == self._name), None)
            if mine is not None:
                loaded.remove(mine)  # the next of this class has the next one
                self._resume(mine["state"])
        except Exception as error:  # a damaged or foreign entry must not keep the fit from resuming
            said = f"{type(error).__name__}: {error}"
            alert(f"{self._name} starts over, without its state from the checkpoint ({said}).")

    def open_evaluation(self, loop: Loop, state: W) -> None:
        """Call `_begin_evaluation`; select anew if the model has changed."""
        state.forget()  # of an evaluation that did not end
        self._follow(loop, state)
        self._begin_evaluation(loop, state)

    def close_batch(self, loop: Loop, state: W) -> None:
        """Remove the hooks of the batch, but those that change tensors before the next one; call `_end_batch`."""
        if not self.changes_tensors:
            state.until_batch_end.close()
        self._end_batch(loop, state, state.stage != "train" or not loop.is_accumulating)
        state.is_due = False

    def abandon_batch(self, loop: Loop, state: W) -> None:
        """Remove the hooks that are left of the previous batch."""
        state.is_due = False
        if state.stage == "train":
            state.forget()  # of a batch that did not end, which may be tried again, as after a lack of memory
        state.until_batch_end.close()

    def close_evaluation(self, loop: Loop, state: W) -> None:
        """Call `_end_evaluation`, and read what it has measured; with several ranks that is read by `finish`."""
        self._end_evaluation(loop, state)
        self._catch_up()

    def _start(self, loop: Loop, running: Sequence[str]) -> None:
        try:
            selection, reason = self._select(loop.model), self._why_not(loop)
        except NothingToSelectError as nothing:
            selection, reason = Selection(), str(nothing)
        except ValueError as error:
            raise ValueError(f"{self._name}: {error}") from error
        decided = reason, int(self._cadence(loop)), self._stages(loop)
        # Often only rank 0 has a logger. If each rank followed its own, some would wait for others for ever.
        if loop.world_size > 1 and self._is_collective(loop) and has_process_group():
            decided = gathered(decided, loop.device)[0]
        reason, every_n_steps, stages = decided
        if reason:
            inform(f"{self._name} {self.verb} nothing: {reason}.")
            return
        if not self._takes_part(loop):
            return
        if self._merges(loop):
            self._ranks = Ranks()
        self._reads_later = self._ranks is not None or loop.device.type != "cpu"
        for stage in stages:
            if stage in running:
                loggers, layout = Loggers(loop.loggers, self._name), modules_in(loop.model)
                state = self.state_class(stage, every_n_steps, loggers, selection, layout)
                self.call_safely(state, self._open_stage, loop, state)
                if state.has_fault:
                    break

    def _open_stage(self, loop: Loop, state: W) -> None:
        self._prepare(loop, state)
        self._live[state.stage] = state
        self._attach(loop, state)
        if not loop.is_fitting:  # the evaluation has begun already
            self.open_evaluation(loop, state)

    def _follow(self, loop: Loop, state: W) -> None:
        """If modules of the model were replaced since the last call, select again; if that differs, attach and warn."""
        layout = modules_in(loop.model)
        if are_same(layout, state.layout):
            return
        state.layout, selection = layout, self._select(loop.model)
        if not selection.is_same(state.selection):
            self._say_changed()
            state.selection = selection
            state.until_end.close()
            self._attach(loop, state)

    def _say_changed(self) -> None:
        if not self._has_said_changed:
            self._has_said_changed = True
            rank_zero_warn(f"{self._name}: the model changed during the fit and is watched as it is now (shown once).")

    def _drop(self, state: W) -> None:
        """End all stages after an error in one; what ranks have not merged yet is dropped."""
        for each in [state, *self.states]:
            each.has_fault = True
        self._leave_ranks()
        self._end_all()

    def _end_all(self) -> None:
        self.finish()
        self._leave_ranks()
        for stage, state in list(self._live.items()):
            # The error that has ended the stage may occur here too. Both stacks run all their callbacks nevertheless.
            with suppress(Exception), state.until_end, state.until_batch_end:
                self._leave(state)
            self._live.pop(stage, None)

    def _leave_ranks(self) -> None:
        """Merge nothing any more, and tell the other ranks; what is pending cannot be merged then, and is dropped."""
        ranks, self._ranks = self._ranks, None
        if ranks is not None:
            self._pending.clear()
            ranks.leave()

    def _all_ranks_at(self, point: str) -> AbstractContextManager[None]:
        """Return `Ranks.at(point)`, which asks the other ranks when it is entered; or a context that does nothing."""
        return nullcontext() if self._ranks is None else self._ranks.at(point)

    def _do_later(self, state: W, read: Callable[[], None]) -> None:
        """Read what a due step has measured: at once if that waits for nothing, else in `finish`."""
        # `read` may ask neither the Trainer nor the model, because both may have changed by then.
        if self._reads_later:
            self._pending.append((state, read))
        else:
            read()

    def _catch_up(self) -> None:
        """Read what is pending, because it is asked for; not with several ranks, which may not all be asked."""
        if self._ranks is None:
            self.finish()


def why_no_step(loop: Loop, every_n_steps: int) -> str:
    """Return why no training step of a fit was measured, as a clause."""
    if loop.trainer is None and not loop.logged_step:
        return "no batch was trained inside `run.step`"
    return f"the fit took {loop.logged_step} steps, but every_n_steps is {every_n_steps}"


def is_due(step: int, every_n_steps: int) -> bool:
    """Return True for the last of every n optimizer steps, counted from 0, as Lightning logs; 0 is Lightning's "never".

    >>> [step for step in range(10) if is_due(step, 4)]
    [3, 7]
    """
    return every_n_steps > 0 and (step + 1) % every_n_steps == 0


def names_in(model: nn.Module) -> list[str]:
    """Return the names of all modules and parameters of the model."""
    modules = {"": model, **dict(named_submodules(model))}
    return [*modules, *weights_of(modules)]


def listed_gaps(gaps: Iterable[tuple[str, Role, str]], among: Iterable[str] = ()) -> str:
    r"""Return a line per role and cause of (name, role, cause) gaps; patterns of names match no other of `among`.

    >>> listed_gaps([("head", "output", "was not called")])
    '\n  - head: output: was not called'
    """
    among, causes = list(among), dict[str, list[str]]()
    for name, role, cause in gaps:
        causes.setdefault(f"{role}: {cause}", []).append(name)
    return "".join(f"\n  - {folded(names, among) or 'the model'}: {cause}" for cause, names in causes.items())
