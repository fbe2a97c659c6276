"""What several callbacks write of one step, in a fit, to the real loggers, offline."""

import csv
from threading import Thread

import numpy as np
import pytest
from lateness import make_late
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger, WandbLogger
from toys import Toy, batches, fit, loader, mlp, trainer

from hookboard import ActivationLogger, GradientLogger, HealthMonitor
from hookboard.base.messages import HookboardWarning
from hookboard.writers.entry import Entry
from hookboard.writers.loggers import Loggers, write_rows

pytestmark = pytest.mark.trains


def numbers(folder, *loggers, others=()):
    """Train three steps with two callbacks that write to the same loggers at each of them."""
    mine = ActivationLogger("net.0", every_n_steps=1, histogram=True), GradientLogger("net.0", every_n_steps=1)
    fit(folder, Toy(mlp()), batches(4, 4, 4), *mine, *others, logger=list(loggers))
    return mine


def steps_of(folder):
    """The step of each row with something of net.0."""
    with (folder / "metrics.csv").open() as file:
        return [row["step"] for row in csv.DictReader(file) if any(row[tag] for tag in row if tag.endswith("/net.0"))]


def test_a_validation_is_in_the_row_of_the_step_before_it(tmp_path):
    mine = ActivationLogger("net.0", every_n_steps=1, stages=["train", "validate"]), GradientLogger(every_n_steps=1)
    logger = CSVLogger(tmp_path, name=None, version="")
    run = trainer(None, *mine, logger=logger, limit_val_batches=None, val_check_interval=2, max_epochs=2)
    run.fit(Toy(mlp()), loader(batches(4, 4, 4)), loader(batches(4)))
    assert steps_of(tmp_path) == [str(step) for step in range(6)]
    with (tmp_path / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["gradient_mean/net.0"]]
    is_validated = [bool(row["validate_activation_mean/net.0"]) for row in rows]
    assert is_validated == [False, True, False, False, True, False]


def test_numbers_that_are_there_late_are_one_row_for_each_step_in_order(tmp_path, monkeypatch):
    make_late(monkeypatch)
    mine = ActivationLogger("net.0", every_n_steps=1), GradientLogger("net.0", every_n_steps=2)
    fit(None, Toy(mlp()), batches(*[4] * 20), *mine, logger=CSVLogger(tmp_path, name=None, version=""))
    assert steps_of(tmp_path) == [str(step) for step in range(20)]


def test_rows_that_another_thread_has_asked_for_are_written_too(tmp_path, monkeypatch):
    class Asks(Callback):
        def on_train_batch_end(self, *_):
            thread = Thread(target=lambda: logged.readings)
            thread.start()
            thread.join()

    make_late(monkeypatch)
    logged = ActivationLogger("net.0", every_n_steps=1)
    fit(None, Toy(mlp()), batches(4, 4, 4), logged, Asks(), logger=CSVLogger(tmp_path, name=None, version=""))
    assert steps_of(tmp_path) == ["0", "1", "2"]


def test_several_callbacks_write_one_row_for_each_step_of_a_table_and_histograms_are_arrays_in_files(tmp_path):
    (logged, _) = numbers(tmp_path, CSVLogger(tmp_path, name=None, version=""))
    assert steps_of(tmp_path) == ["0", "1", "2"]
    assert sorted(path.name for path in tmp_path.glob("histograms/*")) == [f"0000000{step}.npz" for step in range(3)]
    with np.load(tmp_path / "histograms" / "00000002.npz") as arrays:
        (last,) = [reading.histogram for reading in logged.readings]
        np.testing.assert_array_equal(arrays["activations/net.0.counts"], last.counts)
        np.testing.assert_array_equal(arrays["activations/net.0.edges"], last.edges)
    logger = CSVLogger(tmp_path / "again", name=None, version="")
    loggers = Loggers([logger], "ActivationLogger")
    for _ in range(3):  # a step that is written again leaves the histograms before it
        loggers.write(Entry(7, histograms={"activations/net.0": logged.readings[0]}))
        write_rows([logger])
    names = sorted(path.name for path in tmp_path.glob("again/histograms/*"))
    assert names == ["00000007.npz", "00000007_2.npz", "00000007_3.npz"]


@pytest.mark.filterwarnings("default")  # of what W&B runs on
def test_wandb_gets_one_row_for_each_step_with_all_of_it(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    logger, rows = WandbLogger(save_dir=tmp_path, offline=True), []
    real = logger.experiment.log
    monkeypatch.setattr(logger.experiment, "log", lambda row, **rest: (rows.append(row), real(row, **rest)))
    numbers(tmp_path, logger, others=[HealthMonitor(every_n_steps=1)])
    wandb.finish()
    mine = [row for row in rows if "activation_mean/net.0" in row]
    assert [row["trainer/global_step"] for row in mine] == [0, 1, 2]
    for row in mine:
        assert isinstance(row["activations/net.0"], wandb.Histogram)
        assert "gradient_mean/net.0" in row
        assert any(tag.startswith("health/") for tag in row)


def test_what_was_measured_before_an_error_is_written(tmp_path):
    class Failing(Callback):
        def on_train_batch_end(self, trainer, *args):
            if trainer.global_step == 2:
                raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        numbers(tmp_path, CSVLogger(tmp_path, name=None, version=""), others=[Failing()])
    assert steps_of(tmp_path) == ["0", "1"]


def test_a_logger_that_fails_in_a_row_of_several_callbacks_is_named_once(tmp_path):
    class Broken(CSVLogger):
        def log_metrics(self, metrics, step=None):
            if "activation_mean/net.0" in metrics:
                raise OSError("disk full")

    with pytest.warns(
        HookboardWarning, match="ActivationLogger and GradientLogger's values to Broken.*disk full"
    ) as said:
        numbers(tmp_path, Broken(tmp_path, name=None, version=""), CSVLogger(tmp_path / "good", name=None, version=""))
    assert len([one for one in said if one.category is HookboardWarning]) == 1, [str(one.message) for one in said]
    assert steps_of(tmp_path / "good") == ["0", "1", "2"]


def test_a_logger_that_fails_in_a_row_of_two_entries_of_one_callback_does_not_end_the_training(tmp_path):
    class Broken(CSVLogger):
        def log_metrics(self, metrics, step=None):
            if step == 1:
                raise OSError("disk full")

    class Lost(Toy):
        def training_step(self, batch):
            return super().training_step(batch) * (float("nan") if self.global_step else 1.0)

        def log(self, *args, **named):
            pass

    monitor, broken = HealthMonitor(every_n_steps=1), Broken(tmp_path, name=None, version="")
    with pytest.warns(HookboardWarning, match="writing HealthMonitor's values to Broken.*disk full"):
        fit(None, Lost(mlp()), batches(4, 4, 4), monitor, logger=[broken])  # at step 1: a text, and the numbers
    assert monitor.verdicts[0].rule == "nonfinite"
