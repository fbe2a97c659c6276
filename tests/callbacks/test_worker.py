"""What the worker does, forced on for the CPU: all in order, nothing is lost, no thread is left."""

import copy
import errno
import pickle
import threading
import time
import warnings

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from toys import Toy, batches, events, fit, mlp, records, scalars

from hookboard import ActivationLogger, GradientLogger, HealthMonitor, HookboardWarning, ParameterLogger
from hookboard.loops import worker
from hookboard.loops.worker import MAX_UNFINISHED_JOBS, Patience, Worker
from hookboard.writers import loggers

STEPS = MAX_UNFINISHED_JOBS + 4


@pytest.fixture(autouse=True)
def threads_that_end(monkeypatch):
    monkeypatch.setattr("hookboard.loops.callback.has_own_thread", lambda device: True)
    yield
    assert workers() == []


def workers():
    return [thread for thread in threading.enumerate() if thread.name.startswith("hookboard")]


@pytest.fixture
def slow(monkeypatch):
    """Each entry waits for a gate; what was written, by the name of the thread."""
    return Slow(monkeypatch)


class Slow:
    def __init__(self, monkeypatch):
        self.gate = threading.Semaphore(0)
        self.threads, write = [], loggers.write

        def waits(logger, entry):
            self.threads.append(threading.current_thread().name)
            assert self.gate.acquire(timeout=10)
            return write(logger, entry)

        waits.dispatch = write.dispatch
        monkeypatch.setattr(loggers, "write", waits)

    def open(self, entries=10**6):
        self.gate.release(entries)


class Ends(Callback):
    """Ends the run in a step by an error, when so many entries wait; then the logger goes on."""

    def __init__(self, slow, step, error):
        self.slow, self.step, self.error = slow, step, error

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx == self.step:
            self.slow.open()
            raise self.error


class UserError(RuntimeError):
    """An error of the user's."""


@pytest.mark.parametrize("error", [UserError("by the user"), KeyboardInterrupt()], ids=repr)
def test_with_the_queue_full_an_end_by_an_error_loses_nothing(tmp_path, slow, error):
    callback = ActivationLogger("net.0", every_n_steps=1)
    run = [callback, Ends(slow, MAX_UNFINISHED_JOBS - 1, error)]
    with pytest.raises((UserError, KeyboardInterrupt, SystemExit)) as seen:
        fit(tmp_path, Toy(mlp()), batches(*[4] * STEPS), *run)
    assert seen.value is error or isinstance(error, KeyboardInterrupt)
    assert list(scalars(tmp_path)["activation_mean/net.0"]) == list(range(MAX_UNFINISHED_JOBS))
    assert len(callback.readings) == 1


def test_with_the_queue_full_a_full_disk_is_one_warning_and_the_users_error_is_seen(tmp_path, slow, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr("hookboard.writers.tensorboard.quick_writer_of", full)
    run = [ActivationLogger("net.0", every_n_steps=1), Ends(slow, MAX_UNFINISHED_JOBS - 1, UserError())]

    def fails():
        with pytest.raises(UserError):
            fit(tmp_path, Toy(mlp()), batches(*[4] * STEPS), *run)

    with pytest.warns(HookboardWarning, match="switched off.*no space left") as said:
        fails()
    assert len([w for w in said if w.category is HookboardWarning]) == 1


def test_training_waits_for_one_entry_at_most(slow):
    done, mine = [], Worker("hookboard test", in_thread=True)
    for job in range(MAX_UNFINISHED_JOBS):
        mine.do(lambda job=job: (slow.gate.acquire(timeout=10), done.append(job)), pytest.fail)
    assert done == []
    threading.Timer(0.05, slow.open, [1]).start()
    mine.do(lambda: done.append("last"), pytest.fail)
    assert done == [0]
    slow.open()
    mine.close()
    assert done == [*range(MAX_UNFINISHED_JOBS), "last"]


def test_an_interrupt_while_training_waits_loses_nothing(monkeypatch):
    gate, done, mine = threading.Event(), [], Worker("hookboard test", in_thread=True)
    for _ in range(MAX_UNFINISHED_JOBS):
        mine.do(lambda: (gate.wait(10), done.append(1)), pytest.fail)

    waits = mine._changed.wait_for

    def interrupted(condition, timeout=None):
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return waits(condition)

    with monkeypatch.context() as patch:
        patch.setattr(mine._changed, "wait_for", interrupted)
        with pytest.raises(KeyboardInterrupt):
            mine.do(lambda: done.append("last"), pytest.fail)
    gate.set()
    mine.close()
    assert done == [*[1] * MAX_UNFINISHED_JOBS, "last"]


def test_readings_after_a_step_are_those_of_that_step(tmp_path, monkeypatch):
    callback, seen = ActivationLogger("net.0", every_n_steps=1), []

    def slowly(self, readings):
        time.sleep(0.01)
        return readings

    monkeypatch.setattr(ActivationLogger, "_finish", slowly)

    class Reads(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            seen.append(callback.readings[0].moments.count)

    fit(tmp_path, Toy(mlp()), batches(4, 5, 6), callback, Reads())
    assert seen == [4 * 8, 5 * 8, 6 * 8]


def test_entries_keep_their_order_and_all_of_two_callbacks_and_two_loggers_are_there(tmp_path):
    both = [
        TensorBoardLogger(tmp_path / "tb", name=None, version=""),
        CSVLogger(tmp_path / "csv", name=None, version=""),
    ]
    callbacks = [ActivationLogger(every_n_steps=1), GradientLogger(every_n_steps=1), ParameterLogger(every_n_steps=2)]
    fit(tmp_path, Toy(mlp()), batches(*[4] * STEPS), *callbacks, logger=both)
    for kind in ("activation", "gradient"):
        ours = [e.step for e in records(tmp_path / "tb") if any(v.tag.startswith(kind) for v in e.summary.value)]
        assert ours == list(range(STEPS))
    header, *rows = (tmp_path / "csv" / "metrics.csv").read_text().splitlines()
    column = header.split(",").index("gradient_std/net.0")
    assert len([row for row in rows if row.split(",")[column]]) == STEPS


def test_only_tensorboard_is_written_to_in_the_workers_thread(tmp_path, slow):
    slow.open()
    both = [TensorBoardLogger(tmp_path, name=None, version=""), CSVLogger(tmp_path / "csv", name=None, version="")]
    fit(tmp_path, Toy(mlp()), batches(4, 4), ActivationLogger(every_n_steps=1), logger=both)
    assert sorted(slow.threads) == ["MainThread"] * 2 + ["hookboard ActivationLogger"] * 2


def test_a_fault_in_the_worker_is_one_warning_of_the_training_thread(tmp_path, monkeypatch):
    def broken(self, readings):
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(ActivationLogger, "_finish", broken)
    threads, explicit = [], warnings.warn_explicit

    def noted(*args, **named):
        threads.append(threading.current_thread())
        explicit(*args, **named)

    monkeypatch.setattr(warnings, "warn_explicit", noted)
    with pytest.warns(HookboardWarning, match="ActivationLogger .* switched off.*broken on purpose") as said:
        run = fit(tmp_path, Toy(mlp()), batches(*[4] * STEPS), ActivationLogger(every_n_steps=1))
    assert len([w for w in said if w.category is HookboardWarning]) == 1
    assert set(threads) == {threading.main_thread()}
    assert run.global_step == STEPS


def test_a_callback_fits_twice(tmp_path):
    callback = ActivationLogger("net.0", every_n_steps=1)
    for folder in ("one", "two"):
        fit(tmp_path / folder, Toy(mlp()), batches(4, 4, 4), callback)
        assert list(scalars(tmp_path / folder)["activation_mean/net.0"]) == [0, 1, 2]
        assert workers() == []


def test_an_evaluation_is_written_when_it_has_ended(tmp_path):
    callback, seen = ActivationLogger("net.0", stages="validate"), []

    class Looks(Callback):
        def on_validation_end(self, trainer, pl_module):
            seen.append(callback._worker._jobs.copy())

    run = fit(tmp_path, Toy(mlp()), batches(4, 4), callback, Looks(), limit_val_batches=2)
    assert run.global_step == 2
    assert [len(jobs) for jobs in seen] == [0] * len(seen)
    assert "validate_activation_mean/net.0" in scalars(tmp_path)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda callback: pickle.loads(pickle.dumps(callback))])
def test_a_copy_made_amid_the_fit_has_the_readings_and_a_worker_of_its_own(tmp_path, copied):
    callback, copies = ActivationLogger("net.0", every_n_steps=1), []

    class Copies(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            copies.append(copied(callback))

    fit(tmp_path, Toy(mlp()), batches(4, 5), callback, Copies())
    assert [one.readings[0].moments.count for one in copies] == [4 * 8, 5 * 8]
    fit(tmp_path / "again", Toy(mlp()), batches(6), copies[0])
    assert copies[0].readings[0].moments.count == 6 * 8


def test_the_monitor_says_and_ends_what_it_does_without_a_worker(tmp_path, monkeypatch):
    found = []
    for has_thread in (True, False):
        monkeypatch.setattr("hookboard.loops.callback.has_own_thread", lambda device, has=has_thread: has)
        torch.manual_seed(0)
        model = Toy(mlp(), loss=lambda y: y.square().mean() * 1e6)
        monitor = HealthMonitor(every_n_steps=1, window=1, stop_on="alarm")
        run = fit(tmp_path / str(has_thread), model, batches(*[8] * 12), monitor)
        found.append((monitor.verdicts, run.global_step, events(tmp_path / str(has_thread)).Tags()["images"]))
    assert found[0] == found[1]
    assert found[0][0]
    assert found[0][1] < 12


def test_only_the_worker_waits_for_the_device(tmp_path, monkeypatch):
    waits = []

    def sent(tensors):
        def arrived():
            waits.append(threading.current_thread().name)
            return tensors

        return arrived

    monkeypatch.setattr("hookboard.recording.store.sent_together", sent)
    fit(tmp_path, Toy(mlp()), batches(4, 4), ActivationLogger(every_n_steps=1), HealthMonitor(every_n_steps=1))
    assert sorted(waits) == ["hookboard ActivationLogger"] * 2 + ["hookboard HealthMonitor"] * 2


def test_the_thread_is_for_accelerators():
    assert [worker.has_own_thread(torch.device(kind)) for kind in ("cpu", "cuda", "xpu")] == [False, True, True]


def test_a_close_that_was_interrupted_leaves_the_next_job_a_thread():
    done, gate = [], threading.Event()
    worker = Worker("hookboard", in_thread=True)
    worker.do(gate.wait, done.append)
    thread, join = worker._thread, worker._thread.join

    def interrupted():
        raise KeyboardInterrupt

    thread.join = interrupted
    with pytest.raises(KeyboardInterrupt):
        worker.close()
    thread.join = join
    gate.set()
    join()
    worker.do(lambda: done.append("next"), done.append)
    worker.close()
    assert done == ["next"]


def test_where_one_worker_has_waited_in_vain_the_next_is_given_up_soon():
    gate, patience, faults = threading.Event(), Patience(2.0), []
    both = [Worker(f"hookboard {number}", in_thread=True, patience=patience) for number in range(2)]
    start = time.perf_counter()
    for each in both:
        each.do(gate.wait, faults.append)
        each.settle()
    assert [str(fault) for fault in faults] == ["nothing has come of it for 2 seconds"] * 2
    assert 2.0 < time.perf_counter() - start < 3.8
    gate.set()
    while workers():
        time.sleep(0.01)
