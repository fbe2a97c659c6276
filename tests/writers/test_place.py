"""What is told of the place where the page is to be found."""

import sys
from pathlib import Path

import pytest
from lightning.pytorch.loggers import TensorBoardLogger

from hookboard.writers.registry import place_of

pytestmark = pytest.mark.unit


def test_the_command_for_the_tab_can_be_typed_where_the_environment_is_not_activated(tmp_path, monkeypatch):
    scripts = tmp_path / ".venv" / "bin"
    scripts.mkdir(parents=True)
    (scripts / "tensorboard").touch()
    monkeypatch.setattr(sys, "executable", str(scripts / "python"))
    monkeypatch.setenv("PATH", "")
    monkeypatch.chdir(tmp_path)
    assert place_of(TensorBoardLogger("logs")).startswith(f"{Path('.venv/bin/tensorboard')} --logdir logs")


def test_the_command_for_the_tab_is_short_where_it_is_on_the_path(tmp_path, monkeypatch):
    (tmp_path / "tensorboard").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert place_of(TensorBoardLogger("logs")).startswith("tensorboard --logdir logs")
