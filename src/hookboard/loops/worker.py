"""`Worker`: a thread that runs the jobs of one callback, so that training need not wait for them."""

import functools
import math
import threading
from collections import deque
from collections.abc import Callable

import torch

from hookboard.messages import handing_over

MAX_UNFINISHED_JOBS = 4
"""Maximum number of unfinished jobs. With more, `Worker.do` waits until one has finished."""

Job = Callable[[], None]
OnFault = Callable[[BaseException], None]


def has_own_thread(device: torch.device) -> bool:
    """Return True if jobs run in a thread for a model on this device, which is so for all devices but the CPU.

    On the CPU a thread gains nothing: there is no device to wait for, Python runs one thread at a time, and torch uses
    the other cores.
    """
    return device.type != "cpu"


class Patience:
    """The time that the training thread waits for other processes, shared by the workers of all callbacks.

    Args:
        seconds: how long `wait_for` waits. Once it has waited in vain, each further call waits for at most a second,
            until one succeeds.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._left = seconds

    def wait_for(self, changed: threading.Condition, is_so: Callable[[], bool]) -> bool:
        """Wait on the condition until `is_so()` is True or the time is over; return the last value of `is_so()`."""
        if is_so():
            return True
        has_come = changed.wait_for(is_so, max(self._left, min(self.seconds, 1.0)))
        self._left = self.seconds if has_come else 0.0
        return has_come


class Worker:
    """Runs jobs one after another in a thread, which starts with the first job and ends with `close`.

    A job can hand over tasks to the training thread, such as a warning, see `hookboard.messages.hand_over`. They run in
    that thread at the next `do`, `catch_up`, `settle` or `close`, and so does `on_fault` after an error. A copied or
    unpickled worker is a new one without jobs.

    Args:
        name: the name of the thread.
        in_thread: False for no thread: each job runs at once, and its errors are raised.
        patience: how long the training thread waits; None for no limit. If that was in vain, all unfinished jobs are
            dropped, and `on_fault` of the first gets a TimeoutError: it may wait for a process that has ended.
    """

    def __init__(self, name: str = "hookboard", in_thread: bool = False, patience: Patience | None = None) -> None:
        self._name = name
        self._in_thread = in_thread
        self._patience = patience
        self._jobs: deque[tuple[Job, OnFault, float]] = deque()
        self.tasks: deque[Callable[[], None]] = deque()
        """What finished jobs have handed over, for the training thread to run."""
        self._changed = threading.Condition()
        self._is_closing = False
        self._thread: threading.Thread | None = None

    def __reduce__(self) -> tuple[type["Worker"], tuple[()]]:
        return Worker, ()

    def do(self, job: Job, on_fault: OnFault, step: float = math.inf) -> None:
        """Give a job to the thread and wait while more than MAX_UNFINISHED_JOBS are unfinished; or run it at once.

        Args:
            job: a function without arguments. Without a thread it runs here, and its error is raised.
            on_fault: called in the training thread with the error that the job has raised in the worker's thread.
            step: the optimizer step of what the job logs; infinite if it logs nothing.
        """
        if not self._in_thread:
            job()
            return
        if self._is_closing:  # an interrupt has cut `close` short
            self.close()
        with self._changed:
            # Added before waiting, so that an interrupt of the wait does not lose it.
            self._jobs.append((job, on_fault, step))
            if self._thread is None:
                # A daemon, because the process must be able to end without `close`.
                self._thread = threading.Thread(target=self._work, args=[self._jobs], name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify_all()
            self._wait_until(lambda: len(self._jobs) <= MAX_UNFINISHED_JOBS)
        self.catch_up()

    @property
    def first_step(self) -> float:
        """The earliest step of an unfinished job, see `do`; infinite if there is none."""
        if not self._jobs:  # what they have handed over is in `tasks` by now
            return math.inf
        with self._changed:
            return min((step for *_, step in self._jobs), default=math.inf)

    def catch_up(self) -> None:
        """Run the tasks that finished jobs have handed over; does not wait. In a job it does nothing."""
        while self.tasks and not self._is_here:
            self.tasks.popleft()()

    def wait(self) -> None:
        """Wait until all jobs have finished, without running their tasks. In a job it does nothing."""
        if self._thread is not None and not self._is_here:
            with self._changed:
                self._wait_until(lambda: not self._jobs)

    def _wait_until(self, is_so: Callable[[], bool]) -> None:
        if self._patience is None:
            self._changed.wait_for(is_so)
        elif not self._patience.wait_for(self._changed, is_so):
            (_, on_fault, _), *_ = self._jobs
            lost = TimeoutError(f"nothing has come of it for {self._patience.seconds:.0f} seconds")
            self.tasks.append(functools.partial(on_fault, lost))
            self._jobs, self._thread = deque(), None  # the thread ends with its job, whenever that is

    def settle(self) -> None:
        """Wait until all jobs have finished or `patience` ends, then run the tasks handed over, which may raise."""
        self.wait()
        self.catch_up()

    def close(self) -> None:
        """Wait as `settle` does, end the thread, and run the tasks handed over. The next job starts another thread."""
        if self._patience is not None:
            self.wait()
        thread = self._thread
        if thread is not None:
            with self._changed:
                self._is_closing = True
                self._changed.notify_all()
            thread.join()
            self._thread, self._is_closing = None, False
        self.catch_up()

    @property
    def _is_here(self) -> bool:
        """True if the caller runs in the worker's thread."""
        return threading.current_thread() is self._thread

    def _work(self, jobs: deque[tuple[Job, OnFault, float]]) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: jobs or self._is_closing)
                if not jobs:
                    return
                job, on_fault, _ = jobs[0]
            tasks: list[Callable[[], None]] = []
            with handing_over(tasks):
                try:
                    job()
                except BaseException as error:  # `on_fault` handles it in the training thread
                    tasks.append(functools.partial(on_fault, error))
            with self._changed:
                if jobs is not self._jobs:  # they were dropped
                    return
                self.tasks.extend(tasks)
                jobs.popleft()
                self._changed.notify_all()
            del job, on_fault, tasks  # they hold tensors of a step
