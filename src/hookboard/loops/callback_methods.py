"""The methods that a callback overrides, see `callback.py` for when they are called; and what is said of its tags."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

from lightning.pytorch import Callback
from torch import Tensor, nn
from torch.optim import Optimizer

from hookboard.loops.budget import is_due_now
from hookboard.loops.loop import Loop
from hookboard.loops.stage_state import Selection, StageState
from hookboard.messages import inform, rank_zero_warn
from hookboard.ranks import has_process_group
from hookboard.sites import Stage

W = TypeVar("W", bound=StageState)


class NothingToShowError(ValueError):
    """The model or its data have nothing that the callback could show. This is no fault: one warning, and it stops."""


class CallbackMethods(Callback, ABC, Generic[W]):
    """What a callback selects, when it watches, and what it does at each point of a run."""

    state_class: type[W]
    """What it holds of one stage."""

    verb = "shows"
    """What the callback does, used in messages: "KernelLogger shows nothing: ..."."""

    changes_tensors = False
    """Whether its hooks change tensors.

    Then it begins a batch before those that read them, and its hooks are removed only before the next batch: other
    callbacks still find the changed model when they handle the end of this one.
    """

    may_stop_the_run = False
    """Whether an error of this callback stops the run. Otherwise it gives a warning."""

    needs_logger = True
    """Whether there is nothing to watch for without a logger."""

    max_overhead: float | None = None
    """The largest share of the training time that its due steps may take; None for no limit."""

    tells_overhead = False
    """Whether it logs what all callbacks take; of several in a Trainer the first does."""

    sees_every_step = False
    """Whether it is asked at each training batch, due or not, by the methods that begin with `_see_`."""

    remembers = False
    """Whether what it shows of a step follows from the steps before, so that it says so where it does not know them."""

    # What a callback says of itself.

    @abstractmethod
    def _stages(self, loop: Loop) -> Sequence[Stage]:
        """Return the stages that it watches."""

    @abstractmethod
    def _select(self, model: nn.Module) -> Selection:
        """Return the modules that it watches.

        Raises:
            ValueError: the configuration does not fit the model.
        """

    def _prepare(self, loop: Loop, state: W) -> None:
        """Fill the fields that this callback adds to the state of a stage. No hook is attached yet."""

    def _reset(self) -> None:
        """Forget the last run."""

    def _why_not(self, loop: Loop) -> str | None:
        """Return the reason why nothing can be watched in this run; None if there is none."""
        if loop.why_not:
            return loop.why_not
        if self.needs_logger and not loop.loggers:
            return "there is no logger"
        if loop.world_size > 1 and not has_process_group():
            return (
                f"the Trainer has {loop.world_size} processes, but there is no process group to merge what they "
                "measure (torch.distributed is not initialized)"
            )
        return None

    def _is_collective(self, loop: Loop) -> bool:
        """Return whether all ranks measure. Then they do what rank 0 decides."""
        return False

    def _merges(self, loop: Loop) -> bool:
        """Return whether all ranks merge what they measure. Then all of them measure, or none."""
        return False

    def _takes_part(self, loop: Loop) -> bool:
        """Return whether this rank measures."""
        return loop.is_rank_zero or self._is_collective(loop)

    def _cadence(self, loop: Loop) -> int:
        """Return the number of optimizer steps from one due step to the next."""
        return loop.log_every_n_steps

    def _may_stretch(self, state: W) -> bool:
        """Return whether the cadence may stretch yet; all ranks say the same."""
        return True

    def written_tags(self) -> Iterable[str]:
        """Return the tags that this callback will write, as far as they are known before the first batch.

        They serve only to warn of tags that several callbacks write, and of very many; the list may be incomplete.
        """
        return ()

    # What it does at each point of its life.

    def _attach(self, loop: Loop, state: W) -> None:
        """Attach the hooks that stay for the whole stage, and register their removal in `state.until_end`.

        It is called again if the selection changes, after `state.until_end` has been closed.
        """

    def _begin_training(self, loop: Loop, state: W) -> None:
        """Called before the first batch of a fit, after Lightning has loaded a checkpoint, before we restore ours."""

    def _begin_evaluation(self, loop: Loop, state: W) -> None:
        """Called before the first batch of an evaluation."""

    def _wants(self, loop: Loop, state: W, batch_idx: int, dataloader_idx: int) -> bool:
        """Return whether this batch is watched. Here: in training, if its step is due; in evaluations always."""
        return state.stage != "train" or is_due_now(state, loop.logged_step)

    @abstractmethod
    def _begin_batch(self, loop: Loop, state: W, batch: Any) -> None:
        """Called before a batch that is watched."""

    def _before_backward(self, state: W) -> None:
        """Called before each backward pass of a watched training batch, if the stage has `sees_backward`."""

    def _after_backward(self, state: W) -> None:
        """Called after each backward pass of a watched training batch, if the stage has `sees_backward`."""

    def _before_optimizer_step(self, loop: Loop, state: W, optimizer: Optimizer) -> None:
        """Called before a step of this optimizer, in a watched training batch, if the stage has `sees_steps`."""

    def _see_batch(self, loop: Loop, state: W, batch: Any, batch_idx: int) -> None:
        """Called before each training batch, due or not, if `sees_every_step`."""

    def _see_loss(self, loop: Loop, state: W, loss: Tensor) -> None:
        """Called before each backward pass in training, due or not, if `sees_every_step`.

        Args:
            loop: the loop.
            state: the state of the training stage.
            loss: shape (): what the backward pass starts from, scaled if there is a GradScaler.
        """

    def _see_gradients(self, loop: Loop, state: W) -> None:
        """Called after each backward pass in training, due or not, if `sees_every_step`."""

    def _see_step(self, loop: Loop, state: W, optimizer: Optimizer) -> None:
        """Called before each optimizer step, due or not, if `sees_every_step`."""

    def _see_batch_end(self, loop: Loop, state: W) -> None:
        """Called after each training batch, if `sees_every_step`, before `_end_batch`; and where an epoch ends."""

    def _end_batch(self, loop: Loop, state: W, has_stepped: bool) -> None:
        """Called after a batch that was watched.

        Args:
            loop: the loop.
            state: the state of the stage.
            has_stepped: whether the optimizers have stepped; False for a batch whose gradients are only accumulated,
                always True in evaluations.
        """

    def _end_evaluation(self, loop: Loop, state: W) -> None:
        """Called after the last batch of an evaluation."""

    def _end_training(self, loop: Loop, state: W) -> None:
        """Called after the last batch of a fit."""

    def _leave(self, state: W) -> None:
        """Called before a stage ends, after an exception too, when the worker is done. It must not raise."""


MANY = 2000
"""More tags than anybody looks at one by one (a choice)."""


def warn_of_equal_tags(last: object, loop: Loop) -> None:
    """Warn once about tags that several callbacks write. Every callback calls this at the start of a run.

    How many tensors a module has is not known before it runs, so that there may be more equal tags.

    Args:
        last: the callback that calls this; it warns only if it is the last of hookboard's callbacks.
        loop: has all callbacks.
    """
    # One that is given twice is called once at each point of the run.
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
        f"{names} of hookboard's {len(callbacks)} callbacks write the same tags, at least {len(shared)}, for example "
        f"what begins with {next(iter(shared))!r}: it gets several values at one step. Choose their arguments so that "
        "each tag is written by one of them."
    )


def inform_of_many_tags(callback: CallbackMethods[Any]) -> None:
    """Log a line if a callback is going to write more than MANY tags, and how to narrow it."""
    count = sum(1 for _ in callback.written_tags())
    if count > MANY:
        inform(
            f"{type(callback).__name__} is going to write {count:,} tags, more than anybody looks at one by one. To "
            "narrow it, name layers (modules='encoder.*'), types (types=['Linear']) or fewer statistics. "
            "HealthMonitor() shows all layers in 22 tags."
        )
