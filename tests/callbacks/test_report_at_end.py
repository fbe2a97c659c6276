"""`HealthMonitor(report=True)`: the page of the run, written at the end of the fit."""

import csv
import tempfile
from pathlib import Path
from unittest.mock import Mock

import pytest
from board.test_one_file import answers_in
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.loggers.logger import DummyLogger
from toys import Toy, batches, fit, mlp

from hookboard import HealthMonitor, HookboardWarning


@pytest.fixture
def spare(tmp_path, monkeypatch):
    """The folder for temporary files."""
    folder = tmp_path / "spare"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def watched(*loggers, others=(), **options):
    fit(None, Toy(mlp()), batches(*[4] * 6), *others, HealthMonitor(every_n_steps=1, **options), logger=list(loggers))


def is_page(path):
    text = Path(path).read_text(encoding="utf-8")
    return text.startswith("<!doctype html>") and "layers, measured 6 times" in text


def test_tensorboard_has_it_beside_the_event_files_if_it_is_asked_for(tmp_path):
    logger = TensorBoardLogger(tmp_path, name="run", version="")
    watched(logger)
    assert list(tmp_path.rglob("*.html")) == []
    watched(logger, report=True)
    assert is_page(tmp_path / "run" / "report.html")


def test_a_csv_run_has_it_too_and_nothing_else_is_left_or_named(tmp_path, spare, caplog):
    with caplog.at_level("INFO", "lightning.pytorch"):
        watched(CSVLogger(tmp_path, name="run", version=""), report=True)
    assert f"wrote the report of this run: {tmp_path / 'run' / 'report.html'}" in caplog.text
    assert str(spare) not in caplog.text
    assert is_page(tmp_path / "run" / "report.html")
    assert list(spare.iterdir()) == []


def test_without_tensorboard_the_loss_of_measured_steps_is_on_the_page(tmp_path):
    monitor, logger = HealthMonitor(every_n_steps=2, report=True), CSVLogger(tmp_path, name="run", version="")
    fit(None, Toy(mlp()), batches(*[4] * 6), monitor, logger=logger)
    loss = answers_in((tmp_path / "run" / "report.html").read_text())["run", "run"]["loss"]
    assert loss["steps"] == [0, 1, 3, 5]
    with (tmp_path / "run" / "metrics.csv").open() as file:
        logged = [float(row["loss"]) for row in csv.DictReader(file) if row["loss"]]
    assert loss["values"] == pytest.approx([logged[step] for step in loss["steps"]], rel=1e-3)


@pytest.mark.filterwarnings("default")  # of what W&B runs on
def test_wandb_gets_it_as_html(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    watched(WandbLogger(save_dir=tmp_path, offline=True), report=True)
    wandb.finish()
    (path,) = (tmp_path / "wandb").glob("offline-run-*/files/media/html/report*.html")
    assert is_page(path)


@pytest.mark.filterwarnings("default")  # of what MLflow runs on
def test_mlflow_gets_it_as_an_artifact(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    logger = MLFlowLogger(tracking_uri=f"file:{tmp_path}")
    watched(logger, report=True)
    (path,) = tmp_path.glob(f"*/{logger.run_id}/artifacts/report.html")
    assert is_page(path)


@pytest.mark.filterwarnings("ignore:.*Numbers does not support")
def test_a_logger_that_cannot_take_it_is_not_said_to_have_it(capsys):
    class Numbers(DummyLogger):
        log_dir = "somewhere"

        def log_metrics(self, metrics, step=None):
            pass

    watched(Numbers(), report=True)
    assert "is written" not in capsys.readouterr().err


def test_a_fit_that_fails_has_it_up_to_there(tmp_path, spare):
    class Failing(Callback):
        def on_train_batch_end(self, trainer, *args):
            if trainer.global_step == 4:
                raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        watched(CSVLogger(tmp_path, name="run", version=""), others=[Failing()], report=True)
    assert "layers, measured 4 times" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert list(spare.iterdir()) == []


def test_a_fault_in_writing_it_is_one_warning(tmp_path, spare, monkeypatch):
    monkeypatch.setattr("hookboard.board.one_file.page_in", Mock(side_effect=RuntimeError("on purpose")))
    with pytest.warns(HookboardWarning, match="HealthMonitor's report.*on purpose"):
        watched(CSVLogger(tmp_path, name="run", version=""), report=True)
    assert list(spare.iterdir()) == []
