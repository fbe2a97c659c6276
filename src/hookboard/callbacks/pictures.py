"""`PictureLogger`: the base of callbacks that log pictures of one batch."""

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from hookboard.base.checks import check_whole
from hookboard.base.eager import run_eagerly
from hookboard.base.messages import inform
from hookboard.images.picture import Picture
from hookboard.loops.callback import HookboardCallback, StageState, is_due, why_no_step
from hookboard.loops.loop import Loop
from hookboard.model.sites import MODEL, Stage
from hookboard.writers.entry import Entry

STEPS_PER_LOG = 20
"""By default, pictures are logged every this many times `log_every_n_steps`, because they cost more than numbers."""


@dataclass
class PictureState(StageState):
    """The state of a callback that logs pictures, in one stage.

    Args:
        last: the optimizer step of the last pictures; None before the first.
        is_awaited: True if the running evaluation has still to reach the batch that is shown.
        taken: what `_take` returned, from the start of the batch until its pictures are made.
        start: a tensor of each module from the start of the fit, to compare with.
    """

    last: int | None = field(default=None, kw_only=True)
    is_awaited: bool = field(default=False, kw_only=True)
    taken: Any = field(default=None, kw_only=True)
    start: dict[nn.Module, Tensor] = field(default_factory=dict, kw_only=True)


class PictureLogger(HookboardCallback[PictureState]):
    """Base of the callbacks that log pictures.

    A subclass selects the modules (`_select`), attaches hooks for one batch (`_take`), and makes the pictures when the
    batch has ended (`_pictures`).
    """

    state_class = PictureState

    kind: str
    """The first part of its tags, `<kind>/<module>`."""

    needs_weights = True
    """True if the callback reads weights or calls modules, which needs unsharded weights on this rank."""

    def __init__(self, stage: Stage | None, batch_idx: int, every_n_steps: int | None, **counts: int) -> None:
        super().__init__()
        otherwise = f"to use {STEPS_PER_LOG} times the Trainer's log_every_n_steps"
        check_whole("every_n_steps", every_n_steps, of="optimizer steps", otherwise=otherwise)
        check_whole("batch_idx", batch_idx, 0)
        for name, count in counts.items():
            check_whole(name, count)
        self.stage = stage
        self.batch_idx = batch_idx
        self.every_n_steps = every_n_steps

    # The methods that a subclass overrides.

    def _take(self, model: nn.Module, batch: Any, state: PictureState) -> Any:
        """Attach hooks that `state.until_batch_end` removes, and return the object that they fill; by default None."""

    @abstractmethod
    def _pictures(self, loop: Loop, state: PictureState) -> dict[str, Picture]:
        """Return the pictures of the batch by tag; it waits for the device."""

    def _tag(self, name: str) -> str:
        return f"{self.kind}/{name or MODEL}"

    # What it does at each point of a run.

    def _stages(self, loop: Loop) -> list[Stage]:
        has_no_validation = loop.is_fitting and not loop.has_validation
        return [self.stage or ("train" if has_no_validation else "validate")]

    def _why_not(self, loop: Loop) -> str | None:
        if reason := super()._why_not(loop):
            return reason
        if self.needs_weights and loop.weights_kept_by:
            return f"{loop.weights_kept_by} shards the weights across ranks; use ModelParallelStrategy (FSDP2) instead"
        if self.stage == "validate" and loop.is_fitting and not loop.has_validation:
            return "it takes its pictures in validation, but this fit has no validation"
        return None

    def _is_collective(self, loop: Loop) -> bool:
        # Sharded modules run on all ranks or not at all.
        return loop.is_model_parallel

    def _cadence(self, loop: Loop) -> int:
        if not loop.is_fitting:
            return 1
        return STEPS_PER_LOG * loop.log_every_n_steps if self.every_n_steps is None else self.every_n_steps

    def _begin_evaluation(self, loop: Loop, state: PictureState) -> None:
        """Set `is_awaited` if pictures of this evaluation are due."""
        if state.every_n_steps:
            state.is_awaited = state.last is None or loop.logged_step - state.last >= state.every_n_steps

    def _wants(self, loop: Loop, state: PictureState, batch_idx: int, dataloader_idx: int) -> bool:
        if state.stage == "train":
            return is_due(loop.logged_step, state.every_n_steps)
        return state.is_awaited and (batch_idx, dataloader_idx) == (self.batch_idx, 0)

    def _begin_batch(self, loop: Loop, state: PictureState, batch: Any, batch_idx: int) -> None:
        state.is_awaited = False
        if state.stage != "train":
            # Compiled code ignores later hooks. Training must stay compiled: eager code rounds differently.
            state.until_batch_end.enter_context(run_eagerly())
        state.taken = self._take(loop.model, batch, state)

    def _end_batch(self, loop: Loop, state: PictureState, has_stepped: bool) -> None:
        """Make and write the pictures; in training, only if the optimizers have stepped."""
        if has_stepped:
            pictures = self._pictures(loop, state)
            state.last, state.taken = loop.logged_step, None
            # Only now: for sharded weights, `_pictures` is a collective.
            if pictures and loop.is_rank_zero:
                state.loggers.write(Entry(loop.logged_step, pictures=pictures))

    def _end_training(self, loop: Loop, state: PictureState) -> None:
        """Log a line if the fit was too short for pictures."""
        if state.last is None:
            no_batch = f"no {state.stage} loop after the start of the fit had a batch {self.batch_idx}"
            why = why_no_step(loop, state.every_n_steps) if state.stage == "train" else no_batch
            inform(f"{self._name} showed nothing: {why}.")

    def _source(self, state: PictureState) -> str:
        """Return the name of the batch that is shown, for captions: "validation batch 0" or "training batch"."""
        nouns = {"validate": "validation", "test": "test", "predict": "prediction"}
        return f"{nouns[state.stage]} batch {self.batch_idx}" if state.stage in nouns else "training batch"
