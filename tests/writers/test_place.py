"""What is told of the place where the page is to be found."""

import shlex
import sys
from pathlib import Path

import pytest
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch.utils.tensorboard import SummaryWriter

from hookboard.loops.bare import loggers_in
from hookboard.writers.loggers import kind_of

pytestmark = pytest.mark.unit


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


def test_beside_a_table_the_files_are_named(tmp_path):
    place = place_of(CSVLogger(tmp_path, name=None, version=""))
    assert place == f"{tmp_path}/ (health_verdict.md and health_*.png)"
