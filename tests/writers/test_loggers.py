"""What each kind of logger is given of one entry, with the real loggers, offline, and where it is to be found."""

import html
import re
import shlex
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, TensorBoardLogger, WandbLogger
from PIL import Image
from tensorboard.util import tensor_util
from torch.utils.tensorboard import SummaryWriter
from toys import events

from hookboard.images.picture import Picture
from hookboard.loops.bare import loggers_in
from hookboard.writers.entry import Entry, TextTable, escaped, markdown
from hookboard.writers.loggers import Loggers, kind_of, write_rows

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what TensorBoard comes with
    from tensorboard.plugin_util import markdown_to_safe_html

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


def format_of(path):
    with Image.open(path) as image:
        return image.format


def test_tensorboard_gets_everything(tensorboard, tmp_path):
    write(tensorboard, entry())
    tensorboard.experiment.flush()
    found = events(tmp_path)
    assert sorted(found.Tags()["scalars"]) == ["health/rms/median", "health/rms/p10", "health/rms/p90"]
    assert found.Tags()["images"] == ["health/rms"]
    (table,) = found.Tensors("health/verdict/text_summary")
    assert table.tensor_proto.string_val[0].decode() == TABLE.text
    assert found.Tensors("health/note/text_summary")[0].tensor_proto.string_val[0] == b"**bold**"
    (record,) = found.Tensors("hookboard/health")
    assert (record.step, list(record.tensor_proto.string_val)) == (3, STRINGS)
    assert tensor_util.make_ndarray(record.tensor_proto).shape == (2,)


def test_a_csv_logger_gets_scalars_in_its_table_and_all_else_as_files(tmp_path):
    logger = CSVLogger(tmp_path, name=None, version="")
    photo = Picture(np.zeros((8, 8, 3), np.uint8), "a photo", is_photo=True)
    write(logger, entry(3), Entry(5, entry().scalars, pictures={"cam/net.4": photo}))
    logger.finalize("success")
    header, *rows = (tmp_path / "metrics.csv").read_text().splitlines()
    assert header.split(",") == ["health/rms/median", "health/rms/p10", "health/rms/p90", "step"]
    assert [row.split(",")[-1] for row in rows] == ["3", "5"]
    assert (tmp_path / "health_verdict.md").read_text() == TABLE.text
    assert (tmp_path / "health_note.md").read_text() == "**bold**"
    assert [format_of(tmp_path / name) for name in ("health_rms.png", "cam_net.4.jpg")] == ["PNG", "JPEG"]
    assert place_of(logger) == f"{tmp_path}/ (health_verdict.md and health_*.png)"


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
def test_mlflow_gets_metrics_images_and_files_and_names_that_it_refuses_are_changed(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    logger = MLFlowLogger(tracking_uri=f"file:{tmp_path}")
    refused = Entry(4, {"mean/a//b": 1.0, "mean/": 2.0, "mean/é=1": 3.0, "mean/net": 5.0})
    places = write(logger, entry(3), refused, refused).places
    metrics = logger.experiment.get_run(logger.run_id).data.metrics
    changed = {"mean/a/_/b": 1.0, "mean/_": 2.0, "mean/__1": 3.0, "mean/net": 5.0}
    assert metrics == {"health/rms/median": 0.5, "health/rms/p10": 0.1, "health/rms/p90": 0.9} | changed
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


def place_of(logger):
    return kind_of(logger).place_of(logger)


def test_the_command_for_the_tab_is_short_where_it_is_on_the_path(tmp_path, monkeypatch):
    (tmp_path / "tensorboard").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert place_of(TensorBoardLogger("logs")).startswith("tensorboard --logdir logs")


def test_a_writer_of_a_loop_is_looked_at_by_the_same_command(tmp_path):
    with SummaryWriter(tmp_path) as writer:
        (logger,) = loggers_in(writer)
        assert place_of(logger).endswith(f"tensorboard --logdir {tmp_path} (tab Hookboard)")


@pytest.mark.skipif(sys.platform == "win32", reason="a shell of Unix reads the command")
def test_a_folder_with_a_space_in_its_name_is_one_word_for_the_shell(tmp_path, monkeypatch):
    scripts = tmp_path / "my env"
    scripts.mkdir()
    (scripts / "tensorboard").touch()
    monkeypatch.setattr(sys, "executable", str(scripts / "python"))
    monkeypatch.setenv("PATH", "")
    folder = tmp_path / "it's my run"
    program, option, place = shlex.split(place_of(TensorBoardLogger(folder, name=None, version="")).partition(" (")[0])
    assert (Path(program).parent, Path(place)) == (scripts, folder)
    assert option == "--logdir"


def cells(text):
    """The cells as a browser shows them, from TensorBoard's own HTML."""
    shown = re.findall(r"<td>(.*?)</td>", markdown_to_safe_html(text), re.S)
    assert not any("<" in cell for cell in shown)
    return [html.unescape(cell) for cell in shown]


@pytest.mark.parametrize(
    "text",
    [
        *["a|b", "\\|", "two\nlines", "x <script>y</script>", "&amp;", "# a"],
        *["`code`", "_under_ __score__", "*bold* [a](b) ![c](d)", "~~no~~"],
    ],
)
def test_no_text_breaks_a_table(text):
    one_line = text.replace("\n", " ")
    table = markdown(["one", "two"], [[escaped(text), "plain"], ["plain", escaped(text)]])
    assert cells(table) == [one_line, "plain", "plain", one_line]
    assert escaped("layers.7.self_attn.out_proj") == "layers.7.self_attn.out_proj"
