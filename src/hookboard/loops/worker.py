"""`Worker`: a thread of a callback's own, for what training need not wait for."""

import functools
import threading
from collections import deque
from collections.abc import Callable

import torch

from hookboard.messages import handing_over

MOST_WAITING = 4
"""How many jobs may be open before training waits, for one of them at most."""

Job = Callable[[], None]
OnFault = Callable[[BaseException], None]


def has_own_thread(device: torch.device) -> bool:
    """Return whether what follows a due step is done in a thread of its own, for a model on this device.

    On the CPU it is not: there is no device to wait for, Python runs one thread at a time, and torch uses the other
    cores.
    """
    return device.type != "cpu"


class Patience:
    """How long the training thread waits for what other processes must do, over all workers that share it.

    Args:
        seconds: how long it waits in vain, for all of them together. Then each of the others gets a second.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._left = seconds

    def wait_for(self, changed: threading.Condition, is_so: Callable[[], bool]) -> bool:
        """Wait until `is_so` returns True, or the patience ends; returns what it returned last."""
        if is_so():
            return True
        has_come = changed.wait_for(is_so, max(self._left, min(self.seconds, 1.0)))
        self._left = self.seconds if has_come else 0.0
        return has_come


class Worker:
    """Does jobs in the order in which they come. The thread starts with the first job and ends with `close`.

    What a job hands over (`hookboard.messages.hand_over`), such as a warning, and what becomes of an error, is done by
    the training thread: in `do`, `catch_up`, `settle` or `close`; `wait` only waits. A copy of a worker is a new one.

    Args:
        name: of the thread.
        in_thread: whether there is a thread. Otherwise each job is done at once, and its errors are the caller's.
        patience: how long the training thread waits; None for ever. After that the open jobs are given up, with a
            TimeoutError for the first of them: it may wait for another process that never comes.
    """

    def __init__(self, name: str = "hookboard", in_thread: bool = False, patience: Patience | None = None) -> None:
        self._name = name
        self._in_thread = in_thread
        self._patience = patience
        self._jobs: deque[tuple[Job, OnFault]] = deque()
        self.tasks: deque[Callable[[], None]] = deque()
        """What finished jobs have handed over to the training thread."""
        self._changed = threading.Condition()
        self._is_closing = False
        self._thread: threading.Thread | None = None

    def __reduce__(self) -> tuple[type["Worker"], tuple[()]]:
        return Worker, ()

    def do(self, job: Job, on_fault: OnFault) -> None:
        """Do a job, or leave it to the thread; then training waits only if too many are open, for one of them.

        Args:
            job: is called without arguments.
            on_fault: is called in the training thread with the error that a job has raised in the worker's.
        """
        if not self._in_thread:
            job()
            return
        if self._is_closing:  # an interrupt has cut `close` short
            self.close()
        with self._changed:
            # First it is added, then waited: whoever is interrupted loses nothing.
            self._jobs.append((job, on_fault))
            if self._thread is None:
                # A daemon, so that a run that nobody ends does not keep the process from ending.
                self._thread = threading.Thread(target=self._work, args=[self._jobs], name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify_all()
            self._wait_until(lambda: len(self._jobs) <= MOST_WAITING)
        self.catch_up()

    def catch_up(self) -> None:
        """Do what finished jobs have handed over, without waiting."""
        while self.tasks and not self._is_here:
            self.tasks.popleft()()

    def wait(self) -> None:
        """Wait until all jobs are done. In a job it does nothing."""
        if self._thread is not None and not self._is_here:
            with self._changed:
                self._wait_until(lambda: not self._jobs)

    def _wait_until(self, is_so: Callable[[], bool]) -> None:
        if self._patience is None:
            self._changed.wait_for(is_so)
        elif not self._patience.wait_for(self._changed, is_so):
            (_, on_fault), *_ = self._jobs
            lost = TimeoutError(f"nothing has come of it for {self._patience.seconds:.0f} seconds")
            self.tasks.append(functools.partial(on_fault, lost))
            self._jobs, self._thread = deque(), None  # the thread ends with its job, whenever that is

    def settle(self) -> None:
        """Wait until all jobs are done, or patience ends; then do what they handed over, which may raise."""
        self.wait()
        self.catch_up()

    def close(self) -> None:
        """Wait as `settle` does, then end the thread. The next job starts another."""
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
        return threading.current_thread() is self._thread

    def _work(self, jobs: deque[tuple[Job, OnFault]]) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: jobs or self._is_closing)
                if not jobs:
                    return
                job, on_fault = jobs[0]
            tasks: list[Callable[[], None]] = []
            with handing_over(tasks):
                try:
                    job()
                except BaseException as error:  # the training thread decides what becomes of it
                    tasks.append(functools.partial(on_fault, error))
            with self._changed:
                if jobs is not self._jobs:  # they were given up
                    return
                self.tasks.extend(tasks)
                jobs.popleft()
                self._changed.notify_all()
            del job, on_fault, tasks  # they hold what belongs to a step
