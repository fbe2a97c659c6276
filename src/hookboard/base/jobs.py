"""`Jobs`: what a callback has begun at a due step and finishes once the device, or other processes, are ready.

All of it runs in the training thread: at the first opportunity at which there is nothing to wait for.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import NamedTuple, TypeVar

S = TypeVar("S")
T = TypeVar("T")

Steps = Generator[None, None, T]
"""What takes several steps: it yields, without waiting, where it cannot go on yet. Its result is what it returns."""

OnFault = Callable[[Exception], None]

MANY_JOBS, TOO_MANY_JOBS, PAUSE_SECONDS = 4, 16, 0.1
"""With more than this many unfinished jobs `Jobs.add` waits for so many seconds; with more than too many, until one has
finished. Another process that is to finish a job with this one may itself be waiting for this one to train on."""


def until(is_ready: Callable[[], bool]) -> Steps[None]:
    """Yield until the function returns True."""
    while not is_ready():
        yield


def then(steps: Steps[S], use: Callable[[S], T]) -> Steps[T]:
    """Take the steps, then call the function with their result; return what it returns."""
    return use((yield from steps))


def finished(steps: Steps[T]) -> T:
    """Wait for the steps, and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # what the generator returns
        time.sleep(1e-4)


class Patience:
    """The time that the training thread waits for other processes, shared by all callbacks of a run.

    Once `wait_for` has waited in vain, each further call waits for at most a second, until one succeeds.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._left = seconds

    def wait_for(self, is_so: Callable[[], bool]) -> bool:
        """Wait until `is_so()` is True or the time is over; return its last value."""
        if is_so():
            return True
        has_come = _waited(is_so, max(self._left, min(self.seconds, 1.0)))
        self._left = self.seconds if has_come else 0.0
        return has_come

    def hurry(self) -> None:
        """Wait for at most a second from now on."""
        self._left = 0.0


def _waited(is_so: Callable[[], bool], seconds: float) -> bool:
    end, pause = time.monotonic() + seconds, 1e-4
    while not (has_come := is_so()) and time.monotonic() < end:
        time.sleep(pause)
        pause = min(2 * pause, 1e-3)
    return has_come


class _Job(NamedTuple):
    steps: Steps[None]
    on_fault: OnFault
    step: int


class Jobs:
    """Runs jobs one after another, as far as they can go on.

    An error ends its job, and `on_fault` gets it. Inside a job, no method waits. A copied or unpickled `Jobs` is empty.
    If its patience ends in vain, all unfinished jobs are dropped, and `on_fault` of the first gets a TimeoutError: it
    may wait for a process that has ended.
    """

    def __init__(self, patience: Patience | None = None) -> None:
        self._patience = Patience(math.inf) if patience is None else patience
        self._unfinished: deque[_Job] = deque()
        self._running = threading.Lock()
        """Held while a job runs: a thread of the user's may ask for what the job is about to find."""
        self._thread: int | None = None
        """The thread that runs a job, which may ask for that too."""
        self._second = 1.0
        """How many seconds `give_a_second` waits."""

    def __reduce__(self) -> tuple[type["Jobs"], tuple[()]]:
        return Jobs, ()

    @property
    def first_step(self) -> float:
        """The earliest step of an unfinished job, see `add`; infinite if there is none."""
        return min((job.step for job in self._unfinished), default=math.inf)

    def add(self, steps: Steps[None], on_fault: OnFault, step: int) -> None:
        """Begin a job, when those before it have finished, and wait while there are too many; `on_fault` may raise."""
        self._unfinished.append(_Job(steps, on_fault, step))
        _waited(lambda: self._has_at_most(MANY_JOBS), PAUSE_SECONDS)
        self._wait(TOO_MANY_JOBS)

    def advance(self) -> None:
        """Go on with the jobs. It waits for nothing but another thread that runs one of them."""
        while self._unfinished and self._thread != threading.get_ident():
            fault = None
            with self._running:  # only `with` gives it back whenever a KeyboardInterrupt comes
                if not self._unfinished:  # another thread has finished it
                    return
                job = self._unfinished[0]
                try:
                    self._thread = threading.get_ident()
                    next(job.steps)  # until it has to wait again
                    return
                except StopIteration:
                    self._unfinished.popleft()
                except Exception as error:  # `on_fault` handles it, and may wait for the jobs that are left
                    self._unfinished.popleft()
                    fault = error
                finally:
                    self._thread = None
            if fault is not None:
                job.on_fault(fault)

    def finish(self) -> None:
        """Wait until all jobs have finished."""
        self._wait(0)

    def give_a_second(self) -> None:
        """Wait until all jobs have finished, for at most a second; those that have not go on later.

        After each wait in vain the next one is half as long: others may never come while this process waits for them.
        """
        if not self._has_at_most(0):
            has_come = _waited(lambda: self._has_at_most(0), self._second)
            self._second = min(2 * self._second, 1.0) if has_come else max(self._second / 2, 1e-3)

    def _wait(self, most: int) -> None:
        """Wait until at most so many jobs are unfinished."""
        if not self._patience.wait_for(lambda: self._has_at_most(most)):
            with self._running:
                (_, on_fault, _), *_ = lost = list(self._unfinished)
                self._unfinished.clear()
                for job in lost:
                    job.steps.close()
            on_fault(TimeoutError(f"no result for {self._patience.seconds:.0f} seconds"))

    def _has_at_most(self, most: int) -> bool:
        """Go on with the jobs; return True if at most so many are left then, or if this is called in a job."""
        self.advance()
        return len(self._unfinished) <= most or self._thread == threading.get_ident()
