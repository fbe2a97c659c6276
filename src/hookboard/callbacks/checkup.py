"""`Checkup`: audits the first step of a fit and trains a copy on its batch before the training begins."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from hookboard.base.checks import check_number, is_finite
from hookboard.base.messages import inform
from hookboard.experiments.experiment import SECONDS, CheckupReport, Setting, check_up
from hookboard.loops.callback import HookboardCallback, Selection, StageState
from hookboard.loops.loop import Loop
from hookboard.model.sites import Stage
from hookboard.writers.entry import Entry


class Checkup(HookboardCallback[StageState]):
    """Runs the training step on the first batch many times before training, to find out whether the model learns.

    Afterwards the model, the optimizers, the schedulers and the random state are put back, and loggers get nothing;
    what your code does besides, such as printing or writing a file, happens each time. At the first batch it reports
    what `audit` finds in the step. Then it trains a copy on this batch for 30 steps, or 120 if the loss does not fall.
    The report is logged as information, and written as text under `checkup`. On several ranks, under manual
    optimization, with several optimizers or without a Trainer it does nothing, not even the audit, and one line says
    so.

    Args:
        seconds: The time limit for the experiments; after it, no further step begins. Default: 30.

    Raises:
        ValueError: `seconds` is not a finite number above 0.

    Examples:
        >>> Checkup(seconds=60).seconds
        60
    """

    verb = "tries"
    state_class = StageState
    needs_logger = False
    calls_the_model = True

    def __init__(self, *, seconds: float = SECONDS) -> None:
        super().__init__()
        check_number("seconds", seconds, "a number above 0", lambda limit: is_finite(limit) and limit > 0)
        self.seconds = seconds
        self.report: CheckupReport | None = None
        """What was found (nothing after an error); None before the first batch, and in a run where nothing is tried."""

    def _reset(self) -> None:
        self.report = None

    def _stages(self, loop: Loop) -> Sequence[Stage]:
        return ["train"]

    def _select(self, model: nn.Module) -> Selection:
        return Selection()

    def _why_not(self, loop: Loop) -> str | None:
        if loop.world_size > 1:
            return f"there are {loop.world_size} ranks"
        if loop.trainer is None:
            return "there is no Trainer"
        if not getattr(loop.model, "automatic_optimization", True):
            return "it uses manual optimization"
        return super()._why_not(loop)

    def _wants(self, loop: Loop, state: StageState, batch_idx: int, dataloader_idx: int) -> bool:
        return self.report is None

    def _begin_batch(self, loop: Loop, state: StageState, batch: Any, batch_idx: int) -> None:
        self.report = CheckupReport((), ())  # so that it is not repeated at each batch after an error
        self.report = check_up(Setting(loop.model, loop.optimizers, None, loop.trainer), batch, self.seconds)
        inform(str(self.report))
        text = "\n".join(f"    {line}" for line in str(self.report).splitlines())  # a block of code in Markdown
        state.loggers.write(Entry(loop.logged_step, texts={"checkup": text}))
