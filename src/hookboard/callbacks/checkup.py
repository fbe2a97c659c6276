"""`Checkup`: audits the first step of a fit and trains a copy for some steps before the training begins."""

from collections.abc import Sequence
from time import perf_counter
from typing import Any

from torch import nn

from hookboard.base.checks import check_number, is_finite
from hookboard.base.messages import inform
from hookboard.experiments.attempt import Setting
from hookboard.experiments.batches import read_apart
from hookboard.experiments.experiment import CheckupReport
from hookboard.experiments.one_page import BATCHES, SECONDS, check_up
from hookboard.loops.callback import HookboardCallback, Selection, StageState
from hookboard.loops.loop import Loop
from hookboard.model.sites import Stage
from hookboard.tracing.step import CannotRunAgainError, undisturbed
from hookboard.writers.entry import Entry

READING_SHARE = 0.2
"""Maximum share of the budget that reading batches may take (a choice)."""


class Checkup(HookboardCallback[StageState]):
    """Runs the training step many times before training, to find out whether the model learns, and at which rate.

    Afterwards the model, the optimizers, the schedulers and the random state are put back, and loggers get nothing;
    what your code does besides, such as printing or writing a file, happens each time. At the first batch it reports
    what `audit` finds in the step. Then it trains a few steps from the present weights, at rates from a thousandth to a
    thousand times yours, to see whether the model learns at all, and at which rate. The report is logged as
    information, and written as text under `checkup`. On several ranks, under manual optimization, with several
    optimizers or without a Trainer it does nothing, not even the audit, and one line says so.

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
        check_number("seconds", seconds, "a number above 0", lambda given: is_finite(given) and given > 0)
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
        until = perf_counter() + READING_SHARE * self.seconds
        batches, why_not = _batches_of(loop, batch, until)
        setting = Setting(loop.model, loop.optimizers, None, loop.trainer, loop.steps_left)
        report = check_up(setting, batches, self.seconds)
        said = (*report.tried, f"Only the first batch was read, because {why_not}.") if why_not else report.tried
        self.report = CheckupReport(report.findings, said)
        inform(str(self.report))
        text = "\n".join(f"    {line}" for line in str(self.report).splitlines())  # a block of code in Markdown
        state.loggers.write(Entry(loop.logged_step, texts={"checkup": text}))


def _batches_of(loop: Loop, batch: Any, until: float) -> tuple[list[Any], str]:
    """Return up to BATCHES training batches on the model's device, `batch` first; and "".

    After an error, return `batch` alone, and why no further batch could be read, as a clause.

    Args:
        loop: the loop of the fit.
        batch: the batch that is about to be trained on.
        until: the time of `perf_counter` after which no further batch is read.
    """
    try:
        with undisturbed(loop.model):
            more = read_apart(loop.train_dataloader, BATCHES - 1, until)
            return [batch, *(loop.on_device(one) for one in more)], ""
    except Exception as error:  # the user's loader may raise anything, and one batch is enough
        return [batch], str(error) if isinstance(error, CannotRunAgainError) else f"{type(error).__name__}: {error}"
