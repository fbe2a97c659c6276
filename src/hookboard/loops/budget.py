"""Which optimizer steps are due; how much time callbacks take, and the cadence that keeps one within a share of it."""

import math
from collections.abc import Iterable
from time import perf_counter

from hookboard.clock import Clock
from hookboard.loops.stage_state import StageState

OVERHEAD = "hookboard/overhead"
"""The tag of the share of time that all callbacks took since the last look, or since the start of the fit."""


def is_due(step: int, every_n_steps: int) -> bool:
    """Return whether the optimizer step with this number, counted from 0, is measured and logged.

    The last of every n steps is due. Lightning's own logging takes the same one, so that the points of both stand at
    the same steps. If `every_n_steps` is 0 (Lightning's "no logging"), no step is due.

    >>> [step for step in range(10) if is_due(step, 4)]
    [3, 7]
    """
    return every_n_steps > 0 and (step + 1) % every_n_steps == 0


def is_due_now(state: StageState, step: int) -> bool:
    """Return whether this optimizer step of the training is due, at a cadence that may be stretched.

    A stretched cadence counts from the last due step: after a change, one of its multiples may come right after a
    multiple of the cadence before.
    """
    if not is_due(step, state.every_n_steps):
        return False
    last, stretched = state.last_due, state.every_n_steps * state.stretch
    if state.stretch > 1 and last is not None and last != step and step - last < stretched:
        return False
    state.last_due = step
    return True


class OverheadShare:
    """The share of time that several clocks have counted since the last look."""

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None
        self._step: int | None = None

    def begin(self, clocks: Iterable[Clock]) -> None:
        """Begin the first share now; hooks that are running count in full."""
        self._last = perf_counter(), sum(clock.spent for clock in clocks)

    def take(self, step: int, clocks: Iterable[Clock]) -> float | None:
        """Return the share of the time since the last call that the clocks have counted; None if there is none to tell.

        The first call returns None, because what is done only once would dominate; the second covers all the time since
        `begin`. A second call at the same step returns None and changes nothing.
        """
        if step == self._step:
            return None
        is_first, self._step = self._step is None, step
        now = perf_counter()
        spent = 0.0
        for clock in clocks:
            spent += clock.spent + (0.0 if clock.began is None else now - clock.began)
        if self._last is not None and is_first:
            return None
        last, self._last = self._last, (now, spent)
        return None if last is None else (spent - last[1]) / (now - last[0])


class Budget:
    """Finds how far the cadence of a callback must stretch to keep it within a share of the training time.

    What it does in the steps between counts too, but leaves at least half of the share to the due steps. The first due
    step does not count, nor what is before it: they warm up.

    Args:
        share: the largest share, above 0 and at most 1.
        clock: of the callback.
    """

    def __init__(self, share: float, clock: Clock) -> None:
        self.share = share
        self.is_due = False
        """Whether the running batch is due."""
        self._clock = clock
        self._began: tuple[float, float, int] | None = None
        self._time = self._idle = 0.0
        """Seconds: of the training without the callback, and of the callback in steps that are not due."""
        self._steps = self._idle_steps = 0.0
        """How many steps there were, and how many of them not due."""
        self._looks = 0
        self._own = 0.0
        self.look: float | None = None
        """How many seconds a due step adds."""

    def begin_batch(self, step: int) -> None:
        """Called before each training batch, and before it is known whether it is due.

        Args:
            step: the optimizer step that it belongs to.
        """
        self._close(step)
        self._began = perf_counter(), self._clock.spent, step

    def pause(self) -> None:
        """Return what follows, until the next batch, is no training."""
        if self._began is not None:
            self._close(self._began[2] + 1)
        self._began = None

    def _close(self, step: int) -> None:
        if self._began is None:
            return
        start, spent, begun = self._began
        own = self._clock.spent - spent
        self._time += perf_counter() - start - own
        self._steps += step - begun
        if not self.is_due:
            self._idle += own
            self._idle_steps += step - begun
        else:
            self._own += own
            if step != begun:
                self._looks += 1
                if self._looks == 1:
                    self._time = self._steps = self._idle = self._idle_steps = 0.0
                else:
                    self.look = self._own if self.look is None else (self.look + self._own) / 2
                self._own = 0.0

    @property
    def step(self) -> float:
        """How many seconds an optimizer step takes without the callback; 0 if that is not known."""
        return self._time / self._steps if self._steps else 0.0

    @property
    def idle(self) -> float:
        """How many seconds the callback takes in a step that is not due; 0 if there was none."""
        return self._idle / self._idle_steps if self._idle_steps else 0.0

    def wanted(self, every_n_steps: int, now: int) -> int:
        """Return the factor by which the cadence must stretch.

        Args:
            every_n_steps: the cadence without it.
            now: the factor in force. It shrinks only to half of it or less, so that it does not go up and down.
        """
        if self.look is None or not self.step:
            return now
        room = self.share * self.step
        # (look + (n - 1) * idle) / (n * step + look + (n - 1) * idle) is the share with every n-th step due.
        left = max(room - self.idle * (1 - self.share), room / 2)
        needed = max(1, math.ceil((self.look - self.idle) * (1 - self.share) / (left * every_n_steps)))
        self._time, self._steps = self._time / 2, self._steps / 2  # what was long ago counts less
        self._idle, self._idle_steps = self._idle / 2, self._idle_steps / 2
        return needed if needed > now or needed <= now / 2 else now
