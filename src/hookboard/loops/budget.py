"""Decides which optimizer steps are due, and measures and limits the time that callbacks take."""

import math
from collections.abc import Iterable
from time import perf_counter

from hookboard.clock import Clock
from hookboard.loops.stage_state import StageState

OVERHEAD = "hookboard/overhead"
"""The tag of the share of time that all callbacks took since the last value, or since the start of the fit."""


def is_due(step: int, every_n_steps: int) -> bool:
    """Return True if the optimizer step with this number, counted from 0, is measured and logged.

    That is the last of every n steps, the one that Lightning logs too. If `every_n_steps` is 0 (Lightning's "no
    logging"), no step is due.

    >>> [step for step in range(10) if is_due(step, 4)]
    [3, 7]
    """
    return every_n_steps > 0 and (step + 1) % every_n_steps == 0


def is_due_now(state: StageState, step: int) -> bool:
    """Return True if this optimizer step is due in a stage whose cadence may be stretched; if so, set `last_due`.

    A due step must be due by `is_due`, and at least `every_n_steps * stretch` steps after the last due one. The answer
    for the step `last_due` itself stays True.
    """
    if not is_due(step, state.every_n_steps):
        return False
    last, stretched = state.last_due, state.every_n_steps * state.stretch
    if state.stretch > 1 and last is not None and last != step and step - last < stretched:
        return False
    state.last_due = step
    return True


class OverheadShare:
    """Measures the share of wall-clock time that several clocks have counted, from one call of `take` to the next."""

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None
        self._step: int | None = None

    def begin(self, clocks: Iterable[Clock]) -> None:
        """Start the first interval now. The time since a running clock was started belongs to this interval too."""
        self._last = perf_counter(), sum(clock.spent for clock in clocks)

    def take(self, step: int, clocks: Iterable[Clock]) -> float | None:
        """Return the share of the time since the last value that the clocks have counted, between 0 and 1, or None.

        The first call returns None, because work that is done only once would dominate; the second covers all the time
        since `begin`. Another call at the same step returns None and changes nothing.
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
    """Computes by which factor the cadence of a callback must be stretched to keep it within a share of training time.

    The time that the callback takes in steps that are not due counts too, but at least half of the share is left to
    the due steps. The first due step and all steps before it are left out as a warm-up.

    Args:
        share: the largest share, above 0 and at most 1.
        clock: counts the seconds that the callback takes.
    """

    def __init__(self, share: float, clock: Clock) -> None:
        self.share = share
        self.is_due = False
        """Whether the running batch is due."""
        self._clock = clock
        self._began: tuple[float, float, int] | None = None
        self._time = self._idle = 0.0
        """Seconds without the callback (`_time`), and seconds of the callback in steps that are not due (`_idle`)."""
        self._steps = self._idle_steps = 0.0
        """Number of steps that `_time` and `_idle` cover."""
        self._looks = 0
        self._own = 0.0
        self.look: float | None = None
        """Seconds that the callback takes in a due step; None until the second due step has ended."""

    def begin_batch(self, step: int) -> None:
        """Call before each training batch; adds the time since the last call to that of the previous step.

        Args:
            step: the optimizer step to which the batch that begins belongs.
        """
        self._close(step)
        self._began = perf_counter(), self._clock.spent, step

    def pause(self) -> None:
        """Leave out the time from now until the next `begin_batch`, such as a validation."""
        if self._began is not None:
            self._close(self._began[2] + 1)
        self._began = None

    def leave_out(self, seconds: float) -> None:
        """Leave these seconds, which have just passed, out of the running step."""
        if self._began is not None:
            start, spent, begun = self._began
            self._began = start + seconds, spent, begun

    def _close(self, step: int) -> None:
        """Add the time since the last `begin_batch`; `step` is the optimizer step of the next batch."""
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
        """Seconds that an optimizer step takes without the callback; 0 if that is not known."""
        return self._time / self._steps if self._steps else 0.0

    @property
    def idle(self) -> float:
        """Seconds that the callback takes in a step that is not due; 0 if there was none."""
        return self._idle / self._idle_steps if self._idle_steps else 0.0

    def wanted(self, every_n_steps: int, now: int) -> int:
        """Return the factor by which `every_n_steps` must be multiplied to stay within the share, 1 or more.

        Unless nothing is known yet, each call also halves the weight of the times of earlier steps, so call it once per
        due step.

        Args:
            every_n_steps: number of steps between two due steps at factor 1.
            now: the present factor. It is returned if nothing is known yet, and unless a larger one is needed or half
                of it is enough, so that the cadence does not change all the time.
        """
        if self.look is None or not self.step:
            return now
        room = self.share * self.step
        # (look + (n - 1) * idle) / (n * step + look + (n - 1) * idle) is the share with every n-th step due.
        left = max(room - self.idle * (1 - self.share), room / 2)
        needed = max(1, math.ceil((self.look - self.idle) * (1 - self.share) / (left * every_n_steps)))
        self._time, self._steps = self._time / 2, self._steps / 2  # so that earlier times count less
        self._idle, self._idle_steps = self._idle / 2, self._idle_steps / 2
        return needed if needed > now or needed <= now / 2 else now
