"""What `hookboard run` adds to the Trainers of a script: in this process."""

import pytest
import torch
from torch import nn
from toys import Toy, loader, trainer

from hookboard import HealthMonitor
from hookboard.callbacks import in_script as script

X, Y = torch.randn(16, 4, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 3


@pytest.fixture(autouse=True)
def options(monkeypatch):
    monkeypatch.setattr(script, "_verdicts", {})
    given = {"off": [], "stop_on": None, "json": None}
    monkeypatch.setattr(script, "OPTIONS", given)
    return given


def test_a_trainer_gets_one_monitor_with_the_options_however_often_it_fits(tmp_path, options):
    options.update(off=["dropout"], stop_on="alarm")
    run = trainer(tmp_path)
    script.before_fit(run)
    script.before_fit(run)
    (monitor,) = (one for one in run.callbacks if isinstance(one, HealthMonitor))
    assert (monitor.rules, monitor.stop_on, monitor.state_dict()) == (["*", "!dropout"], "alarm", {})


def test_a_trainer_that_has_a_monitor_keeps_it_alone(tmp_path):
    own = HealthMonitor()
    run = trainer(tmp_path, own)
    script.before_fit(run)
    assert [one for one in run.callbacks if isinstance(one, HealthMonitor)] == [own]


def test_a_checkpoint_has_nothing_of_the_monitor(tmp_path):
    run = trainer(tmp_path)
    script.before_fit(run)
    run.fit(Toy(nn.Linear(4, 3)), loader([X] * 4), loader([X]))
    run.save_checkpoint(tmp_path / "kept.ckpt")
    kept = torch.load(tmp_path / "kept.ckpt", weights_only=False)
    assert "hookboard" not in kept
    assert not any("HealthMonitor" in name for name in kept["callbacks"])


def test_a_file_that_cannot_be_written_is_said(tmp_path, options):
    options["json"] = str(tmp_path / "missing" / "found.json")
    run = trainer(tmp_path)
    script.before_fit(run)
    with pytest.warns(match="the verdicts were not written .FileNotFoundError"):
        run.fit(Toy(nn.Linear(4, 3)), loader([X]), loader([X]))
