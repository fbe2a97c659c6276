"""Runs that Lightning's CSVLogger alone has logged: what is read of them is what event files hold of the same fit."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch import nn
from toys import ALWAYS, Toy, fit

from hookboard import ActivationLogger, FeatureMapLogger, HealthMonitor, read
from hookboard.board import Board
from hookboard.board.board import MAX_HISTOGRAMS
from hookboard.records import CSV_INDEX
from hookboard.report import main
from hookboard.report.answers import answers_of
from hookboard.report.folders import open_folders

pytestmark = pytest.mark.trains

LOGGERS = {"events": TensorBoardLogger, "table": CSVLogger}


def train(*loggers):
    """Train four steps with numbers, histograms, pictures, verdicts and a loss."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
    images = [torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(k)) for k in range(4)]
    callbacks = [
        HealthMonitor(every_n_steps=1, rules=[ALWAYS]),
        ActivationLogger(every_n_steps=1, histogram=True),
        FeatureMapLogger("net.0", stage="train", every_n_steps=2),
    ]
    fit(None, Toy(net), images, *callbacks, logger=list(loggers))


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """The folders of one fit: its event files, and its table."""
    folder = tmp_path_factory.mktemp("logs")
    loggers = [kind(folder / name, name="run", version="") for name, kind in LOGGERS.items()]
    train(*loggers)
    return folder


@pytest.fixture
def table(logs, tmp_path):
    """A copy of the folder of the table, which a test may spoil."""
    return Path(shutil.copytree(logs / "table" / "run", tmp_path / "run"))


def alike(answer):
    """An answer without what differs between any two files, and with numbers as exact as those of event files."""
    if isinstance(answer, dict):
        return {key: alike(value) for key, value in answer.items() if key != "token"}
    if isinstance(answer, float):
        return float(f"{answer:.5g}")
    return answer if isinstance(answer, str | int | None) else [alike(value) for value in answer]


def answers(folder):
    source, names = open_folders([folder])
    return {tuple(request): alike(answer) for request, answer in answers_of(Board(), source, names, 400)}


def test_the_page_has_what_it_has_of_event_files(logs):
    found, expected = answers(logs / "table" / "run"), answers(logs / "events" / "run")
    assert expected["layer", "run", "net.0"]["pictures"]
    assert expected["layer", "run", "net.0"]["histograms"]
    assert found.keys() == expected.keys()
    for request, answer in expected.items():
        assert found[request] == answer, request


def test_verdicts_and_runs_are_those_of_event_files(logs, capsys):
    for command, status in (("verdicts", 1), ("runs", 0)):
        assert main([command, str(logs / "table" / "run")]) == status
        shown = capsys.readouterr().out
        assert main([command, str(logs / "events" / "run")]) == status
        assert capsys.readouterr().out == shown
        assert "run" in shown


def test_read_gives_the_numbers_that_were_measured(logs):
    found, stored = read(logs / "table" / "run"), read(logs / "events" / "run")
    assert found.verdicts == stored.verdicts
    assert list(found.readings) == list(stored.readings)
    for name, one in found.readings.items():
        assert one.layers == stored.readings[name].layers
        np.testing.assert_array_equal(one.values.astype(np.float32), stored.readings[name].values)


def test_a_run_whose_table_is_not_written_yet_is_found(table, capsys):
    (table / "metrics.csv").unlink()
    assert main(["verdicts", str(table)]) == 1
    assert "alarm: always in net.0" in capsys.readouterr().out
    assert "train/activation/std" not in read(table).readings


def test_runs_of_both_kinds_are_found_in_one_folder(logs):
    _, names = open_folders([logs])
    assert sorted(names) == [f"{logs.name}/events/run", f"{logs.name}/table/run"]


def test_of_a_folder_with_both_only_the_event_files_are_read(logs, table):
    for path in (logs / "events" / "run").glob("events.*"):
        shutil.copy(path, table)
    source, names = open_folders([table])
    assert names == ["run"]
    assert len(source.runs()) == 1


def test_a_damaged_record_is_said(table, capsys):
    (table / "hookboard_health.npz").write_bytes(b"PK")
    assert main(["verdicts", str(table)]) == 2
    assert "'hookboard/health' cannot be read" in capsys.readouterr().err


def test_a_damaged_table_is_said(table, capsys):
    (table / "metrics.csv").write_text("step," + "x" * 200_000)
    assert main(["runs", str(table)]) == 2
    assert "metrics.csv' is no table" in capsys.readouterr().err


def test_a_table_of_somebody_else_is_no_run(tmp_path):
    (tmp_path / "metrics.csv").write_text("epoch,activation_std/net\n1,2\n")
    with pytest.raises(ValueError, match=r"no event file and no metrics.csv in .* has data of hookboard"):
        open_folders([tmp_path])


def test_a_file_outside_of_the_folder_is_not_read(table):
    (table.parent / "secret.png").write_bytes(b"secret")
    with (table / CSV_INDEX).open("a") as index:
        index.write("feature_maps/net.0,9,../secret.png\n")
    (table / "feature_maps_net.0.png").unlink()
    source, names = open_folders([table])
    assert Board().layer(source, names[0], "net.0", 400, has_band=False)["pictures"] == []


def test_a_step_that_was_logged_again_has_its_last_histogram(table):
    with np.load(table / "histograms" / "00000003.npz") as arrays:
        again = {name: array * 2 for name, array in arrays.items()}
    np.savez(table / "histograms" / "00000003_2.npz", **again)
    source, names = open_folders([table])
    answer = Board().histogram(source, names[0], "activations/net.0")
    assert answer["steps"] == [0, 1, 2, 3]
    assert answer["counts"][3] == again["activations/net.0.counts"].tolist()


def test_of_many_histograms_the_steps_are_evenly_chosen(table):
    for step in range(4, 404):
        shutil.copy(table / "histograms" / "00000003.npz", table / "histograms" / f"{step:08}.npz")
    source, names = open_folders([table])
    steps = Board().histogram(source, names[0], "activations/net.0")["steps"]
    assert (len(steps), steps[-1]) == (MAX_HISTOGRAMS, 403)
    assert {*np.diff(steps)} <= {3, 4, 5}
