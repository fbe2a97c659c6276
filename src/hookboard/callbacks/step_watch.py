"""`StepWatch`: reads the code of the first training step of a run, and watches what later steps do."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from torch import Tensor
from torch.optim import Optimizer

from hookboard.base.messages import warn_switched_off
from hookboard.base.torch_private import computing_plainly
from hookboard.health.rule import Finding
from hookboard.health.run import StepFacts
from hookboard.loops.loop import Loop
from hookboard.tracing.adapters import Adapter
from hookboard.tracing.bad_operation import Program
from hookboard.tracing.built_in import STEP
from hookboard.tracing.live_step import LiveStep
from hookboard.tracing.modes import Modes
from hookboard.tracing.optimizing import Unfrozen
from hookboard.tracing.stale import StaleGradients

T = TypeVar("T")

_STALE = "the search for gradients that are not cleared"


class StepWatch:
    """Follows the first training step while it runs, and watches optimizers, modes and frozen weights in later ones.

    Args:
        asked: the names of the rules that are asked; none to follow and watch nothing.
    """

    def __init__(self, asked: Collection[str] = ()) -> None:
        self.is_following = not STEP.isdisjoint(asked)
        """Whether every step is watched, due or not, as at the beginning of a run."""
        self.facts = StepFacts()
        """What is known so far, to be given to the judge."""
        self.programs: Sequence[Program] = ()
        """The autograd nodes behind the losses of the first step, with layer and line."""
        self.adapters: Sequence[Adapter] = ()
        """The adapters that the first step shows."""
        self._is_read, self._first_step = not self.is_following, 0
        self._live: LiveStep | None = None
        self._stale: StaleGradients | None = None
        self._modes = Modes() if "eval_mode" in asked else None
        self._unfrozen = Unfrozen() if asked else None
        self._off: set[str] = set()

    def begin_batch(self, loop: Loop, batch: Any) -> None:
        """Follow the batch that comes next, unless the first step has been read."""
        if not self._is_read and self._live is None:
            self._first_step, self._live = loop.logged_step, LiveStep(loop)
            self._stale = StaleGradients(loop.model, loop.optimizers)
        if self._live is not None:
            self._live.begin(batch)

    def before_backward(self, loss: Tensor) -> None:
        """Judge what led to a loss whose backward pass comes next."""
        if self._live is not None:
            self._live.before_backward(loss)
            self.programs, self.adapters = self._live.programs, self._live.adapters
        if self._stale is not None:
            self.tried(_STALE, self._stale.before_backward)

    def after_backward(self) -> None:
        """Note that a backward pass has ended."""
        if self._live is not None:
            self._live.after_backward()
        if self._stale is not None:
            self.tried(_STALE, self._stale.after_backward)

    def before_step(self, loop: Loop, optimizer: Optimizer, is_due: bool) -> None:
        """Note that an optimizer is about to step."""
        step = loop.logged_step
        if is_due and self._modes is not None:
            what = "the search for layers left in evaluation mode"
            self._add(self.tried(what, self._modes.see, loop.model, step) or (), step)
        if is_due and self._unfrozen is not None:
            what = "the search for weights that are unfrozen later"
            found = self.tried(what, self._unfrozen.see, loop.optimizers, loop.model)
            if found is not None and self._is_read:  # what was said of frozen weights no longer holds
                kept = [one for one in self.facts.findings if one.rule != "frozen"]
                self.facts = self.facts._replace(findings=kept)
                self._add(found, step)
        if self._stale is not None:
            self.tried(_STALE, self._stale.before_step, optimizer)

    def end_batch(self) -> None:
        """End the batch, and take what is known of the first step."""
        first = None if self._live is None else self._live.end()
        if first is not None:
            self._live, self._is_read = None, True
            self.facts = first._replace(findings=[*self.facts.findings, *first.findings])
        if self._stale is not None:
            found = self.tried(_STALE, self._stale.end_batch)
            if found is not None:
                # All steps of an optimizer without gradients were so.
                self._add([found], None if found.rule == "stale_gradients" else self._first_step)
            if self._stale.is_over or _STALE in self._off:
                self._stale = None
        self.is_following = not self._is_read or self._stale is not None

    def leave_batch(self) -> None:
        """Stop following a batch that has not ended, as after an error."""
        if self._live is not None:
            self._live.leave()

    def tried(self, what: str, watch: Callable[..., T], *given: Any) -> T | None:
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
