"""`StepRecorder`: writes what a training step computes to a file, to find where two runs part."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from hookboard.base.checks import wrong
from hookboard.base.messages import inform
from hookboard.comparing import record_run, shown
from hookboard.loops import HookboardCallback, Loop, Selection, StageState
from hookboard.model.sites import Stage
from hookboard.tracing import CannotRunAgainError, loss_of_step, undisturbed


class StepRecorder(HookboardCallback[StageState]):
    """Records what each module takes and gives in a training step, and gradients, from seven extra runs of the step.

    After each run the model, the optimizers, the schedulers and the random state are put back, and the training goes
    on as without it; what your code does besides, such as printing or writing a file, happens each time. Under gradient
    accumulation only the first batch of a step is recorded. `hookboard.compare("run_a", "run_b")` tells the first step
    and module in which two runs differ by more than rounding. A step that takes an iterator, or with manual
    optimization, is not recorded, and one line says so. Of several ranks each records what it computes from its own
    part of the batch, before gradients are averaged, into a folder of its own: compare runs with as many ranks. Where
    all ranks must call a module together, as with FSDP, nothing is recorded.

    Args:
        folder: Where the files are written, one for each step: `step_00000010.zip`; with several ranks
            `rank_0/step_00000010.zip` and so on.
        steps: The optimizer steps to record, counted from 0.

    Raises:
        ValueError: `steps` is empty, or one of them is not a whole number of at least 0.

    Examples:
        >>> StepRecorder("run_a", [0, 100]).steps
        [0, 100]
    """

    verb = "records"
    state_class = StageState
    needs_logger = False

    def __init__(self, folder: str, steps: Sequence[int] = (0, 1, 10)) -> None:
        super().__init__()
        if not isinstance(folder, str | Path) or not str(folder):
            raise wrong("folder", folder, "a path")
        is_list = isinstance(steps, list | tuple) and bool(steps)
        if not is_list or any(isinstance(step, bool) or not isinstance(step, int) or step < 0 for step in steps):
            raise wrong("steps", steps, "a list of whole numbers of at least 0")
        self.folder, self.steps = folder, steps
        self._done: set[int] = set()
        self._batch_idx = 0

    def _reset(self) -> None:
        self._done = set()

    def _stages(self, loop: Loop) -> Sequence[Stage]:
        return ["train"]

    def _select(self, model: nn.Module) -> Selection:
        return Selection()

    def _why_not(self, loop: Loop) -> str | None:
        if loop.is_model_parallel or loop.weights_kept_by:
            return "the weights are split over ranks, which must call a module together"
        if loop.trainer is None:
            return "there is no Trainer"
        return super()._why_not(loop)

    def _takes_part(self, loop: Loop) -> bool:
        return True

    def _wants(self, loop: Loop, state: StageState, batch_idx: int, dataloader_idx: int) -> bool:
        self._batch_idx = batch_idx
        return loop.logged_step in self.steps and loop.logged_step not in self._done

    def _begin_batch(self, loop: Loop, state: StageState, batch: Any) -> None:
        step = loop.logged_step
        self._done.add(step)
        folder = Path(self.folder)
        if loop.world_size > 1:
            folder /= f"rank_{loop.rank}"
        path = folder / f"step_{step:08}.zip"
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            record_run(loop.model, partial(_run, loop, batch, self._batch_idx), path)
        except CannotRunAgainError as why:
            path.unlink(missing_ok=True)
            inform(f"StepRecorder did not record step {step}: {why}.")


def _run(
    loop: Loop,
    batch: Any,
    batch_idx: int,
    see: Callable[..., Tensor | None],
    at_end: Callable[[], None],
) -> None:
    """Run a training step and its backward pass without a trace, show each tensor to `see`, then call `at_end`."""
    module: Any = loop.model
    with undisturbed(module, batch, trainer=loop.trainer, is_whole_step=True), shown(module, see):
        loss_of_step(loop.trainer, module, batch, batch_idx).backward()
        at_end()
