"""What each kind of logger is given of one entry, with the real loggers, offline."""

import numpy as np
import pytest
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, WandbLogger
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util

from hookboard.images.picture import Picture
from hookboard.writers.entry import Entry, TextTable
from hookboard.writers.loggers import Loggers, write_rows

TABLE = TextTable(("layer", "why"), (("a|b", "x"), ("c", "y")), "**two** rows")

STRINGS = [b'{"version": 1}', bytes(range(256))]


def entry(step=3):
    pixels = np.arange(40 * 344, dtype=np.uint8).reshape(40, 344) % 200
    return Entry(
        step,
        scalars={"health/rms/median": 0.5, "health/rms/p10": 0.1, "health/rms/p90": 0.9},
        pictures={"health/rms": Picture(pixels, "RMS of all layers")},
        texts={"health/note": "**bold**"},
        tables={"health/verdict": TABLE},
        records={"hookboard/health": STRINGS},  # which others than TensorBoard leave out without a warning
    )


def write(logger, *entries):
    loggers = Loggers([logger], "HealthMonitor")
    for one in entries:
        loggers.write(one)
    write_rows([logger])
    return loggers


def read(folder):
    events = EventAccumulator(str(folder), {"tensors": 0, "images": 0, "scalars": 0})
    events.Reload()
    return events


def format_of(path):
    with Image.open(path) as image:
        return image.format


def test_tensorboard_gets_everything(tensorboard, tmp_path):
    write(tensorboard, entry())
    tensorboard.experiment.flush()
    events = read(tmp_path)
    assert sorted(events.Tags()["scalars"]) == ["health/rms/median", "health/rms/p10", "health/rms/p90"]
    assert events.Tags()["images"] == ["health/rms"]
    (table,) = events.Tensors("health/verdict/text_summary")
    assert table.tensor_proto.string_val[0].decode() == TABLE.text
    assert events.Tensors("health/note/text_summary")[0].tensor_proto.string_val[0] == b"**bold**"
    (record,) = events.Tensors("hookboard/health")
    assert (record.step, list(record.tensor_proto.string_val)) == (3, STRINGS)
    assert tensor_util.make_ndarray(record.tensor_proto).shape == (2,)


def test_a_csv_logger_gets_scalars_in_its_table_and_all_else_as_files(tmp_path):
    logger = CSVLogger(tmp_path, name=None, version="")
    write(logger, entry(3), entry(5))
    logger.finalize("success")
    header, *rows = (tmp_path / "metrics.csv").read_text().splitlines()
    assert header.split(",") == ["health/rms/median", "health/rms/p10", "health/rms/p90", "step"]
    assert [row.split(",")[-1] for row in rows] == ["3", "5"]
    assert (tmp_path / "health_verdict.md").read_text() == TABLE.text
    assert (tmp_path / "health_note.md").read_text() == "**bold**"
    assert format_of(tmp_path / "health_rms.png") == "PNG"


def test_a_photo_is_a_jpeg_among_the_files(tmp_path):
    photo = Picture(np.zeros((8, 8, 3), np.uint8), "a photo", is_photo=True)
    write(CSVLogger(tmp_path, name=None, version=""), Entry(0, pictures={"cam/net.4": photo}))
    assert format_of(tmp_path / "cam_net.4.jpg") == "JPEG"


@pytest.mark.filterwarnings("default")  # of what W&B runs on
def test_wandb_gets_scalars_pictures_and_tables(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = WandbLogger(save_dir=tmp_path, offline=True)
    logged = []
    real = logger.experiment.log
    monkeypatch.setattr(
        logger.experiment, "log", lambda metrics, **rest: (logged.append(metrics), real(metrics, **rest))
    )
    places = write(logger, entry(3)).places
    wandb.finish()
    got = {key: value for metrics in logged for key, value in metrics.items()}
    assert got["trainer/global_step"] == 3
    assert got["health/rms/median"] == 0.5
    (image,) = got["health/rms"]
    assert image.image.width == 700
    assert got["health/verdict"].columns == ["layer", "why"]
    assert got["health/verdict"].data == [["a|b", "x"], ["c", "y"]]
    assert got["health/note"].data == [["**bold**"]]
    (run,) = (tmp_path / "wandb").glob("offline-run-*")
    assert list((run / "files" / "media" / "table" / "health").glob("verdict*.json"))
    assert str(run) in places[0]


@pytest.mark.filterwarnings("default")  # of what MLflow runs on
def test_mlflow_gets_metrics_images_and_files(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    logger = MLFlowLogger(tracking_uri=f"file:{tmp_path}")
    places = write(logger, entry(3)).places
    run = logger.experiment.get_run(logger.run_id)
    assert run.data.metrics == {"health/rms/median": 0.5, "health/rms/p10": 0.1, "health/rms/p90": 0.9}
    (folder,) = tmp_path.glob(f"*/{logger.run_id}/artifacts")
    assert (folder / "health" / "verdict.md").read_text() == TABLE.text
    (image,) = folder.glob("images/*.png")
    assert image.name.startswith("health~rms+step+3+")
    assert logger.run_id in places[0]


@pytest.mark.spawns
def test_neither_wandb_nor_mlflow_is_imported_with_hookboard(run_script, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys, hookboard; print([m for m in ('wandb', 'mlflow') if m in sys.modules])")
    done = run_script(script)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


@pytest.mark.filterwarnings("default")  # of what MLflow runs on
def test_names_that_mlflow_refuses_are_changed(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    logger = MLFlowLogger(tracking_uri=f"file:{tmp_path}")
    scalars = {"mean/a//b": 1.0, "mean/": 2.0, "mean/é=1": 3.0, "mean/net": 5.0}
    write(logger, Entry(3, scalars), Entry(4, scalars))
    assert logger.experiment.get_run(logger.run_id).data.metrics == {
        "mean/a/_/b": 1.0,
        "mean/_": 2.0,
        "mean/__1": 3.0,
        "mean/net": 5.0,
    }
