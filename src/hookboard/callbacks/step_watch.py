"""`StepWatch`: reads the code of the first training step of a run, and watches what later steps do."""

import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from torch import Tensor
from torch.optim import Optimizer

from hookboard.base.messages import warn_switched_off
from hookboard.base.torch_private import computing_plainly
from hookboard.callbacks.adapted import AdaptedWeights
from hookboard.health import SPIKE_HISTORY_STEPS, Finding, Judge, StepFacts, Stepped, WorstRows, median
from hookboard.loops import Loop
from hookboard.measure import Table
from hookboard.model.parameters import Weight
from hookboard.tracing import (
    STEP,
    Adapter,
    LiveStep,
    Modes,
    Program,
    StaleGradients,
    Unfrozen,
    row_counts_of,
    worst_rows_of,
)

T = TypeVar("T")

_ROWS = "the search for the rows with the largest loss"


class StepWatch:
    """Follows the first training step while it runs, and watches optimizers, modes and frozen weights in later ones.

    An error in what watches is a warning, and switches that off; all else goes on.

    Args:
        judge: the judge of the run; None on a rank that does not judge, where gradients are not watched.
        asked: the names of the rules that are asked; none to follow and watch nothing.
    """

    def __init__(self, judge: Judge | None = None, asked: Collection[str] = ()) -> None:
        self._judge = judge
        self._live: LiveStep | None = None
        self._stale: StaleGradients | None = None
        self._modes = Modes() if "eval_mode" in asked else None
        self._unfrozen = Unfrozen() if asked else None
        self._watches_spikes = "spike" in asked
        self._losses: deque[float] = deque(maxlen=SPIKE_HISTORY_STEPS)
        self._batch: Any = None
        self._off: set[str] = set()
        self._is_read = STEP.isdisjoint(asked)
        self.facts = StepFacts()
        """What is known so far, to be given to the judge."""
        self.programs: Sequence[Program] = ()
        """The autograd nodes behind the losses of the first step, with layer and line."""
        self.adapters: Sequence[Adapter] = ()
        """The adapters that the first step shows."""
        self._adapted = AdaptedWeights()
        self.factors: frozenset[str] = frozenset()
        """The factors of adapters whose product was measured at the latest due step, by name."""

    def begin_batch(self, loop: Loop, batch: Any) -> None:
        """Keep the batch that comes next, and follow it, unless the first step has been read."""
        self._batch = batch
        if self.adapters:
            self._adapted.forget()
        if not self._is_read and self._live is None:
            self._live = LiveStep(loop)
            self._stale = None if self._judge is None else StaleGradients(loop.model, loop.optimizers)
        if self._live is not None:
            self._live.begin(batch)

    def see_loss(self, loop: Loop, loss: Tensor, is_due: bool) -> None:
        """Judge what led to a loss whose backward pass comes next."""
        if self._live is not None:
            self._live.before_backward(loss)
            self.programs, self.adapters = self._live.programs, self._live.adapters
        if is_due and self._modes is not None:
            found = self._guarded(
                "the search for layers left in evaluation mode", self._modes.see, loop.model, loop.logged_step
            )
            self._add(found or (), loop.logged_step)
        if self._stale is not None:
            self._watch_stale(self._stale.before_backward)

    def worst_rows(self, loss: Tensor, value: float) -> WorstRows | None:
        """Return the rows of the batch with the largest loss if this may be a spike: none of the last was as high.

        The rule judges it only later, when the graph is gone.
        """
        losses = list(self._losses)
        if self._watches_spikes and math.isfinite(value):
            self._losses.append(value)
        if len(losses) < SPIKE_HISTORY_STEPS // 4 or not value > max(0.0, *losses):
            return None
        excess = 1 - median(losses) / value
        return self._guarded(_ROWS, lambda: worst_rows_of(loss, row_counts_of(self._batch), excess))

    def see_gradients(self) -> None:
        """Note that a backward pass has ended."""
        if self._live is not None:
            self._live.after_backward()
        if self._stale is not None:
            self._watch_stale(self._stale.after_backward)

    def see_step(self, loop: Loop, optimizer: Optimizer, is_due: bool) -> None:
        """Note that an optimizer is about to step."""
        if is_due and self._unfrozen is not None:
            found = self._guarded(
                "the search for weights that are unfrozen later", self._unfrozen.see, loop.optimizers, loop.model
            )
            if found is not None and self._is_read:  # what was said of frozen weights no longer holds
                kept = [one for one in self.facts.findings if one.rule != "frozen"]
                self.facts = self.facts._replace(findings=kept)
                self._add(found, loop.logged_step)
        if self._stale is not None:
            self._watch_stale(self._stale.before_step, optimizer)

    def keep_products(self, weights: Mapping[str, Weight], stepped: dict[str, Stepped]) -> None:
        """Compute what adapters add to frozen weights, before an optimizer steps, see `AdaptedWeights.keep`."""
        if self.adapters:
            self._guarded("measuring the updates of adapters", self._adapted.keep, self.adapters, weights, stepped)

    def measure_products(self, table: Table, weights: Mapping[str, Weight]) -> None:
        """Measure it after the optimizers have stepped."""
        if self.adapters:
            found = self._guarded("measuring the updates of adapters", self._adapted.measure, table, weights)
            self.factors = found or frozenset()

    def end_batch(self) -> None:
        """End the batch, and take what is known of the first step."""
        self._batch = None
        first = None if self._live is None else self._live.end()
        if first is not None:
            self._live, self._is_read = None, True
            found = [*self.facts.findings, *first.findings]
            self.facts = first._replace(findings=found)
        if self._stale is not None:
            self._watch_stale(self._stale.end_batch)

    def leave_batch(self) -> None:
        """Stop following a batch that has not ended, as after an error."""
        self._batch = None
        if self._live is not None:
            self._live.leave()

    def leave(self) -> None:
        """Stop following the first step."""
        self.leave_batch()
        self._live = None

    def _watch_stale(self, watch: Callable[..., Finding | None], *given: Any) -> None:
        found = self._guarded("the search for gradients that are not cleared", watch, *given)
        if found is not None:
            # All steps of the optimizer were without gradients.
            first = self._judge.run.first if self._judge is not None and found.rule != "stale_gradients" else None
            self._add([found], None if first is None else first.step)
        if self._stale is not None and self._stale.is_over:
            self._stale = None

    def _guarded(self, what: str, watch: Callable[..., T], *given: Any) -> T | None:
        """Return what `watch` returns; None if it has failed, now or before, of which one warning says `what`."""
        if what in self._off:
            return None
        try:
            return computing_plainly(watch)(*given)
        except Exception as error:  # the judge goes on without what it finds
            self._off.add(what)
            warn_switched_off(what, error)
            return None

    def _add(self, found: Sequence[Finding], since: int | None = None) -> None:
        """Add what was found in the training step, perhaps since an earlier one; the next look judges it."""
        new = [replace(one, since=since) for one in found]
        self.facts = self.facts._replace(findings=[*self.facts.findings, *new])
