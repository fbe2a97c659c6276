"""The methods that a callback overrides (`callback.py` calls them), and warnings about its tags."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from lightning.pytorch import Callback
from torch import Tensor, nn
from torch.optim import Optimizer

from hookboard.base.messages import inform, rank_zero_warn
from hookboard.base.ranks import has_process_group
from hookboard.loops.loop import Loop
from hookboard.loops.stage_state import Selection, StageState, is_due
from hookboard.model.sites import Stage

if TYPE_CHECKING:
    from typing import Generic
else:

    class Generic:
        """Stands for that of `typing`, whose text would end the `help()` of each callback."""

        __slots__ = ()

        def __class_getitem__(cls, state: object) -> type:
            return cls


W = TypeVar("W", bound=StageState)


class NothingToShowError(ValueError):
    """Raised by a callback if the model or its data have nothing that it can show: its stage ends with one warning."""


class CallbackMethods(Generic[W], Callback, ABC):
    """The attributes and methods that a callback overrides."""

    state_class: type[W]
    """The class of the state that it has for each stage."""

    verb = "shows"
    """What the callback does, used in messages: "KernelLogger shows nothing: ..."."""

    changes_tensors = False
    """True if its hooks change tensors.

    Then it begins a batch before callbacks that measure, and its hooks stay until the next batch begins, so that other
    callbacks find the changed model when they handle the end of the batch.
    """

    calls_the_model = False
    """True if it calls the model, which may need the modes of torch that are in force; others call none of them."""

    may_stop_the_run = False
    """True if an error of this callback stops the run. Otherwise the error gives a warning."""

    needs_logger = True
    """True if it does nothing in a run without a logger."""

    sees_every_step = False
    """True if the methods that begin with `_see_` are called at each training batch, due or not."""

    def __repr__(self) -> str:
        """Return the call that makes it: its class, and the arguments that differ from their defaults.

        >>> from hookboard import HealthMonitor
        >>> HealthMonitor("net.*", window=4)
        HealthMonitor(modules='net.*', window=4)
        """
        wanted = inspect.signature(type(self)).parameters
        given = {name: getattr(self, name, one.default) for name, one in wanted.items()}
        shown = (f"{name}={value!r}" for name, value in given.items() if repr(value) != repr(wanted[name].default))
        return f"{type(self).__name__}({', '.join(shown)})"

    # What a checkpoint has of it.

    def _saved(self) -> Any:
        """Return a few plain numbers and texts for the checkpoint, from which `_resume` goes on; None for nothing."""
        return None

    def _resume(self, saved: Any) -> None:
        """Go on from what `_saved` returned when the checkpoint was written."""

    # What it measures, and when.

    @abstractmethod
    def _stages(self, loop: Loop) -> Sequence[Stage]:
        """Return the stages in which it measures."""

    @abstractmethod
    def _select(self, model: nn.Module) -> Selection:
        """Return the modules that it measures.

        Raises:
            NothingToSelectError: the model has none by default: one line is logged, and the callback does nothing.
            ValueError: the configuration does not fit the model, such as a pattern that matches no module.
        """

    def _prepare(self, loop: Loop, state: W) -> None:
        """Set the fields that this callback adds to the state of a stage. Called before `_attach`."""

    def _reset(self) -> None:
        """Clear the results of the last run. Called when another run starts."""

    def _why_not(self, loop: Loop) -> str | None:
        """Return why it cannot measure anything in this run, as a clause; None if it can."""
        if loop.why_not:
            return loop.why_not
        if self.needs_logger and not loop.loggers:
            return "there is no logger"
        if loop.world_size > 1 and not has_process_group():
            return (
                f"the Trainer has {loop.world_size} processes, but there is no process group to merge their "
                "measurements (torch.distributed is not initialized)"
            )
        return None

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

    def written_tags(self) -> Iterable[str]:
        """Return the tags that this callback will write, as far as they are known before the first batch.

        They are used only to warn about very many tags, and about tags that several callbacks write.
        """
        return ()

    # What it does at each point of a run.

    def _attach(self, loop: Loop, state: W) -> None:
        """Attach the hooks that stay for the whole stage, and register their removal in `state.until_end`.

        If the selection changes, `state.until_end` is closed and this is called again.
        """

    def _begin_training(self, loop: Loop, state: W) -> None:
        """Called before the first batch of a fit. A checkpoint's weights are loaded by now, its `state` is not yet."""

    def _begin_evaluation(self, loop: Loop, state: W) -> None:
        """Called before the first batch of an evaluation."""

    def _wants(self, loop: Loop, state: W, batch_idx: int, dataloader_idx: int) -> bool:
        """Return True if this batch is measured. By default: in training if its step is due, in evaluations always."""
        return state.stage != "train" or is_due(loop.logged_step, state.every_n_steps)

    @abstractmethod
    def _begin_batch(self, loop: Loop, state: W, batch: Any) -> None:
        """Called before a batch that is measured; it registers the removal of its hooks in `state.until_batch_end`."""

    def _before_backward(self, state: W) -> None:
        """Called before each backward pass of a measured training batch, if the stage has `sees_backward`."""

    def _after_backward(self, state: W) -> None:
        """Called after each backward pass of a measured training batch, if the stage has `sees_backward`."""

    def _before_optimizer_step(self, loop: Loop, state: W, optimizer: Optimizer) -> None:
        """Called before a step of this optimizer, in a measured training batch, if the stage has `sees_steps`."""

    def _see_batch(self, loop: Loop, state: W, batch: Any, batch_idx: int) -> None:
        """Called before each training batch, due or not, if `sees_every_step`."""

    def _see_loss(self, loop: Loop, state: W, loss: Tensor) -> None:
        """Called before each backward pass in training, due or not, if `sees_every_step`.

        Args:
            loop: the loop.
            state: the state of the training stage.
            loss: the tensor that the backward pass starts from; with a GradScaler, multiplied by its scale.
        """

    def _see_gradients(self, loop: Loop, state: W) -> None:
        """Called after each backward pass in training, due or not, if `sees_every_step`."""

    def _see_step(self, loop: Loop, state: W, optimizer: Optimizer) -> None:
        """Called before each optimizer step, due or not, if `sees_every_step`."""

    def _see_batch_end(self, loop: Loop, state: W) -> None:
        """Called after each training batch, before `_end_batch`, and again after each epoch, if `sees_every_step`."""

    def _end_batch(self, loop: Loop, state: W, has_stepped: bool) -> None:
        """Called after a batch that was measured.

        Args:
            loop: the loop.
            state: the state of the stage.
            has_stepped: whether the optimizers have stepped; False for a batch whose gradients are only accumulated,
                always True in evaluations.
        """

    def _end_evaluation(self, loop: Loop, state: W) -> None:
        """Called after the last batch of an evaluation."""

    def _end_training(self, loop: Loop, state: W) -> None:
        """Called after the last batch of a fit, for each stage."""

    def _leave(self, state: W) -> None:
        """Called before the hooks of a stage are removed, also after an error. Must not raise."""


def why_no_step(loop: Loop, every_n_steps: int) -> str:
    """Return why no training step of a fit was measured, as a clause."""
    if loop.trainer is None and not loop.logged_step:
        return "no batch was trained inside `run.step`"
    return f"the fit took {loop.logged_step} steps, but every_n_steps is {every_n_steps}"


MAX_SILENT_TAGS = 2000
"""Maximum number of tags of one callback that are written without a line about it (a choice)."""


def warn_of_equal_tags(last: object, loop: Loop) -> None:
    """Warn once about tags that several callbacks write. Every callback calls this at the start of a run.

    There may be more such tags: it is not known before a module runs how many tensors it returns.

    Args:
        last: the callback that calls this; there is a warning only if it is the last of hookboard's callbacks.
        loop: the run with all callbacks.
    """
    # A callback that is given twice takes part once.
    callbacks = list({id(c): c for c in loop.callbacks if isinstance(c, CallbackMethods)}.values())
    if len(callbacks) < 2 or callbacks[-1] is not last or not loop.loggers:
        return
    writers: dict[str, list[int]] = {}
    for number, callback in enumerate(callbacks):
        for tag in dict.fromkeys(callback.written_tags()):
            writers.setdefault(tag, []).append(number)
    shared = {tag: numbers for tag, numbers in writers.items() if len(numbers) > 1}
    if not shared:
        return
    numbers = sorted({number for several in shared.values() for number in several})
    names = " and ".join(f"{type(callbacks[number]).__name__} (callback {number + 1})" for number in numbers)
    rank_zero_warn(
        f"{names} (out of {len(callbacks)} hookboard callbacks) write {len(shared)} or more of the same tags (such as "
        f"{next(iter(shared))!r}), so each of these tags gets several values per step. Configure the "
        "callbacks so that each tag is written by only one of them."
    )


def inform_of_many_tags(callback: CallbackMethods[Any]) -> None:
    """Log a line if a callback is going to write more than MAX_SILENT_TAGS tags; it says how to write fewer."""
    count = sum(1 for _ in callback.written_tags())
    if count > MAX_SILENT_TAGS:
        inform(
            f"{type(callback).__name__} will write {count:,} tags, too many to look at one by one. To narrow them "
            "down, select layers (modules='encoder.*'), types (types=['Linear']) or fewer statistics. HealthMonitor() "
            "shows all layers in 22 tags."
        )
