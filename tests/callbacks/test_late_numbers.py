"""Numbers that are read at the end of the next batch, as of a GPU or with several ranks: in order, none is lost."""

import errno
import re

import pytest
import torch
from callbacks.heard import warnings_of
from lateness import make_late
from lightning.pytorch.callbacks import Callback, LambdaCallback
from toys import Toy, batches, events, fit, mlp, scalars

from hookboard import ActivationLogger, HealthMonitor, HookboardWarning

STEPS = 8


@pytest.fixture(autouse=True)
def late(monkeypatch):
    make_late(monkeypatch)


class Ends(Callback):
    """Ends the run in the fourth step by an error."""

    def __init__(self, error):
        self.error = error

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx == 3:
            raise self.error


@pytest.mark.parametrize("error", [ZeroDivisionError(), KeyboardInterrupt()], ids=repr)
def test_an_end_by_an_error_loses_nothing(tmp_path, error):
    callback = ActivationLogger("net.0", every_n_steps=1)
    with pytest.raises((ZeroDivisionError, KeyboardInterrupt, SystemExit)) as seen:
        fit(tmp_path, Toy(mlp()), batches(*[4] * STEPS), callback, Ends(error))
    assert seen.value is error or isinstance(error, KeyboardInterrupt)
    assert list(scalars(tmp_path)["activation_mean/net.0"]) == list(range(4))
    assert len(callback.readings) == 1


def test_a_full_disk_is_one_warning_and_the_users_error_is_seen(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr("hookboard.writers.tensorboard.quick_writer_of", full)
    run = [ActivationLogger("net.0", every_n_steps=1), Ends(ZeroDivisionError())]
    with pytest.raises(ZeroDivisionError), pytest.warns(HookboardWarning, match="switched off.*no space left") as said:
        fit(tmp_path, Toy(mlp()), batches(*[4] * STEPS), *run)
    assert len([one for one in said if one.category is HookboardWarning]) == 1


def test_readings_after_a_step_are_those_of_that_step(tmp_path):
    callback, seen = ActivationLogger("net.0", every_n_steps=1), []
    reads = LambdaCallback(on_train_batch_end=lambda *args: seen.append(callback.readings[0].moments.count))
    fit(tmp_path, Toy(mlp()), batches(4, 5, 6), callback, reads)
    assert seen == [4 * 8, 5 * 8, 6 * 8]


def test_a_fault_in_what_is_done_later_is_one_warning(tmp_path, monkeypatch):
    def broken(self, readings):
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(ActivationLogger, "_complete", broken)
    model = Toy(mlp())
    (said,) = warnings_of(lambda: fit(tmp_path, model, batches(*[4] * STEPS), ActivationLogger(every_n_steps=1)))
    assert re.search("ActivationLogger .* switched off.*broken on purpose", said)
    assert model.global_step == STEPS


def test_the_monitor_says_and_ends_what_it_does_where_nothing_is_late(tmp_path, monkeypatch):
    found = []
    for name in ("late", "at once"):
        if name == "at once":
            monkeypatch.undo()
        torch.manual_seed(0)
        model = Toy(mlp(), loss=lambda y: y.square().mean() * 1e6)
        monitor = HealthMonitor(every_n_steps=1, window=1, stop_on="alarm")
        run = fit(tmp_path / name, model, batches(*[8] * 12), monitor)
        found.append((monitor.verdicts, run.global_step, events(tmp_path / name).Tags()["images"]))
    assert found[0] == found[1]
    assert found[0][0]
    assert found[0][1] < 12
