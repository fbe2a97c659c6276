"""What jobs do: all in order, nothing is lost, and nobody waits longer than it must."""

import signal
import threading
import time

import pytest

from hookboard.base import jobs
from hookboard.base.jobs import MANY_JOBS, Jobs, Patience, until

pytestmark = pytest.mark.unit


class Gate:
    """What jobs wait for; it lets so many of them pass."""

    def __init__(self):
        self.left = 0

    def open(self, jobs=10**6):
        self.left = jobs


@pytest.fixture
def gate():
    return Gate()


def noting(done, name, gate):
    """A job that waits at a gate."""
    while not gate.left:
        yield
    gate.left -= 1
    done.append(name)


def add(mine, steps, on_fault=pytest.fail):
    mine.add(steps, on_fault, 0)


def test_a_job_with_nothing_to_wait_for_has_finished_when_it_is_added(gate):
    done, mine = [], Jobs()
    gate.open()
    add(mine, noting(done, "it", gate))
    assert done == ["it"]


def test_jobs_finish_in_order_when_they_can_and_nobody_waits(gate):
    done, mine = [], Jobs()
    for name in range(MANY_JOBS):
        add(mine, noting(done, name, gate))
    mine.advance()
    assert done == []
    gate.open(2)
    mine.advance()
    assert done == [0, 1]
    gate.open()
    mine.finish()
    assert done == [*range(MANY_JOBS)]


def test_with_too_many_jobs_one_is_awaited(gate):
    done, mine = [], Jobs()
    for name in range(MANY_JOBS):
        add(mine, noting(done, name, gate))
    threading.Timer(0.05, gate.open, [1]).start()
    add(mine, noting(done, "last", gate))
    assert done == [0]


def test_an_interrupt_of_a_wait_loses_nothing(gate, monkeypatch):
    done, mine = [], Jobs()
    for name in range(MANY_JOBS):
        add(mine, noting(done, name, gate))

    def interrupted(seconds):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(jobs.time, "sleep", interrupted)
        with pytest.raises(KeyboardInterrupt):
            add(mine, noting(done, "last", gate))
    gate.open()
    mine.finish()
    assert done == [*range(MANY_JOBS), "last"]


def failing(error, gate):
    while not gate.left:
        yield
    raise error


def test_an_interrupt_at_any_moment_leaves_jobs_that_can_finish():
    class InterruptError(KeyboardInterrupt):
        pass

    def interrupt(*_):
        raise InterruptError

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for tenth in range(1, 1000):
            mine = Jobs(Patience(1.0))
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-5 + tenth * 1e-7)
                while True:
                    add(mine, (None for _ in range(1)))
                    mine.advance()
            except InterruptError:
                pass
            add(mine, until(lambda: True))
            mine.finish()
    finally:
        signal.signal(signal.SIGALRM, before)


def test_an_error_ends_its_job_alone(gate):
    done, faults, mine = [], [], Jobs()
    error = RuntimeError("broken on purpose")
    add(mine, failing(error, gate), faults.append)
    add(mine, noting(done, "next", gate))
    gate.open()
    mine.finish()
    assert faults == [error]
    assert done == ["next"]


def test_what_is_called_with_an_error_may_finish_the_other_jobs(gate):
    done, mine = [], Jobs()
    add(mine, failing(RuntimeError(), gate), lambda error: (mine.finish(), done.append("fault")))
    add(mine, noting(done, "next", gate))
    gate.open()
    mine.finish()
    assert done == ["next", "fault"]


def test_in_a_job_nothing_is_awaited(gate):
    mine, done = Jobs(), []

    def asks():
        mine.finish()
        mine.advance()
        done.append("it")
        yield from ()

    add(mine, asks())
    assert done == ["it"]


def test_another_thread_may_ask_for_what_a_job_finds(gate):
    done, mine = [], Jobs()
    add(mine, noting(done, "it", gate))
    asking = threading.Thread(target=mine.finish)
    asking.start()
    gate.open()
    while asking.is_alive():
        mine.advance()
    assert done == ["it"]


def test_jobs_that_take_too_long_are_dropped_and_the_first_one_is_told(gate):
    closed, faults, mine = [], [], Jobs(Patience(0.05))

    def waits():
        try:
            yield from noting([], "", gate)
        finally:
            closed.append("closed")

    add(mine, waits(), faults.append)
    add(mine, waits(), pytest.fail)
    mine.finish()
    assert [str(fault) for fault in faults] == ["no result for 0 seconds"]
    assert closed == ["closed"], "the second had not begun"
    assert mine.first_step == float("inf")


def test_where_one_callback_has_waited_in_vain_the_next_is_given_up_soon(gate):
    patience, faults = Patience(2.0), []
    start = time.perf_counter()
    for _ in range(2):
        mine = Jobs(patience)
        add(mine, noting([], "", gate), faults.append)
        mine.finish()
    assert [str(fault) for fault in faults] == ["no result for 2 seconds"] * 2
    assert 3.0 < time.perf_counter() - start < 3.8


def test_who_asks_in_vain_again_and_again_waits_less_each_time(gate):
    done, mine = [], Jobs()
    add(mine, noting(done, "it", gate))
    start = time.monotonic()
    for _ in range(30):
        mine.give_a_second()
    assert 1.0 <= time.monotonic() - start < 3.0
    gate.open()
    mine.give_a_second()
    assert done == ["it"]
