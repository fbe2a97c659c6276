"""The code in README.md and docs/ runs as it stands there."""

import logging
import os
import re
import subprocess
import sys
from collections import OrderedDict
from functools import partial

import lightning.pytorch
import pytest
import torch
import yaml
from documents.pages import PAGES, blocks
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.loggers import TensorBoardLogger
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.data import DataLoader
from toys import Toy, batches, fit, mlp

from hookboard import ActivationLogger, HealthMonitor
from hookboard.base.messages import alert, inform

TRIED_ELSEWHERE = {"docs/inside.md"}
"""tests/callbacks/test_records.py reads a log with the example of this page."""

PYTHON = [page for page in PAGES if blocks(page, "python") and page not in TRIED_ELSEWHERE]
YAML = [page for page in PAGES if blocks(page, "yaml")]

pytestmark = pytest.mark.trains


def network():
    """A network that has the names of which the pages speak."""
    named = OrderedDict(
        stem=nn.Sequential(OrderedDict(conv=nn.Conv2d(1, 4, 3))),
        layer1=nn.Sequential(nn.Sequential(OrderedDict(conv1=nn.Conv2d(4, 4, 3), relu=nn.ReLU()))),
        flat=nn.Flatten(),
        head=nn.Linear(64, 3),
    )
    return nn.Sequential(named)


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.backbone = network()

    def training_step(self, batch):
        return self.backbone(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


@pytest.fixture
def given(tmp_path, monkeypatch):
    """What the pages take as given, and a Trainer that is soon done."""
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    short = partial(Trainer, accelerator="cpu", max_steps=2, log_every_n_steps=1, **quiet)
    monkeypatch.chdir(tmp_path)
    lines = logging.getLogger("lightning.pytorch")
    monkeypatch.setattr(lines, "filters", [*lines.filters])
    for package in (lightning, lightning.pytorch):
        monkeypatch.setattr(package, "Trainer", partial(short, logger=TensorBoardLogger(tmp_path)))
    x = torch.randn(2, 1, 8, 8)
    return {
        "trained": {"model": Model(), "data": DataLoader([x, x], batch_size=None)},
        "called": {"model": network(), "x": x},
    }


def run(page, given):
    """Runs the blocks of a page one after the other, and returns what they have defined."""
    code = "\n".join(blocks(page, "python"))
    namespace = dict(given["trained"] if "Trainer" in code else given["called"])
    exec(compile(code, page, "exec"), namespace)
    return namespace


@pytest.mark.parametrize("page", PYTHON)
def test_the_python_of_a_page_runs(page, given):
    run(page, given)


def test_the_numbers_are_read_in_code_as_the_page_of_layers_says(given):
    deviations = run("docs/layers.md", given)["deviations"]
    assert deviations.keys() == {"backbone.layer1.0.conv1"}
    assert deviations["backbone.layer1.0.conv1"] > 0


def test_tensors_are_captured_and_changed_as_their_page_says(given):
    found = run("docs/capture.md", given)
    seen, changed = found["seen"], found["changed"]
    assert seen["layer1.0.conv1"].output.shape == (2, 4, 4, 4)
    assert seen["scores"].grad_output[:, 0].tolist() == [1, 1]
    assert seen["scores"].grad_output[:, 1:].count_nonzero() == 0
    assert changed["stem.conv"].output[:, 3].count_nonzero() == 0
    assert changed["stem.conv"].output[:, :3].count_nonzero() > 0


def test_a_statistic_and_a_rule_of_ones_own_work_as_their_page_says(tmp_path, given):
    found = run("docs/extend.md", given)
    logger = ActivationLogger("net.0", statistics=["std", found["NEAR_ZERO"]], every_n_steps=1)
    net, data = mlp(), batches(8)
    outputs = net[0](data[0]).detach()
    net[2].weight.data.mul_(1e4)
    monitor = HealthMonitor(rules=["dead_units", "nonfinite", found["HUGE"]], every_n_steps=1, window=1)
    fit(tmp_path, Toy(net), data, logger, monitor)
    assert logger.readings[0].statistics["near_zero"] == pytest.approx((outputs.abs() < 0.05).double().mean().item())
    assert "huge_outputs" in {verdict.rule for verdict in monitor.verdicts}


def test_the_lines_in_the_terminal_are_turned_off_as_the_page_of_health_says(given, caplog):
    run("docs/health.md", given)
    caplog.clear()
    inform("a line of information")
    alert("an alarm")
    logging.getLogger("lightning.pytorch").warning("of Lightning's own")
    assert caplog.messages == ["of Lightning's own"]


def test_the_page_of_nan_shows_the_verdict_that_its_training_gets(given, capsys):
    run("docs/nan.md", given)
    (shown,) = blocks("docs/nan.md", "text")
    assert without_numbers(shown) in without_numbers(capsys.readouterr().out.replace("nan.md", "train.py"))


def test_the_page_of_health_shows_a_verdict_as_it_is_printed(tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    nn.init.constant_(net[2].bias, -10)
    monitor = HealthMonitor(every_n_steps=1)
    fit(tmp_path, Toy(net), batches(*[32] * 6), monitor)
    (shown,) = blocks("docs/health.md", "text")
    assert without_numbers(shown) == without_numbers(str(monitor.verdicts[0]))


def test_what_float16_would_lose_is_measured_as_the_page_of_precision_says(given):
    found = run("docs/precision.md", given)
    assert found["room"] > 1
    assert 0 <= found["small"]["backbone.stem.conv"] <= 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of jsonargparse, as LightningCLI calls it
@pytest.mark.parametrize("page", YAML)
def test_the_yaml_of_a_page_gives_callbacks(page, tmp_path, monkeypatch):
    config = tmp_path / "config.yaml"
    monkeypatch.setattr("sys.argv", ["train.py", "--config", str(config), "--trainer.accelerator", "cpu"])
    for block in blocks(page, "yaml"):
        config.write_text(block)
        made = LightningCLI(Model, run=False, seed_everything_default=0).trainer.callbacks
        asked = yaml.safe_load(block)["trainer"]["callbacks"]
        named = [callback["class_path"].removeprefix("hookboard.") for callback in asked]
        assert [type(callback).__name__ for callback in made if type(callback).__name__ in named] == named


@pytest.mark.spawns
def test_the_front_page_shows_what_is_said_of_its_script(tmp_path):
    (tmp_path / "train.py").write_text(blocks("README.md", "python")[0])
    command = [sys.executable, "-m", "hookboard", "run", "train.py"]
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "timeout": 300}
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONUNBUFFERED": "1"}, check=True, **both)
    (shown,) = blocks("README.md", "text")
    said = re.sub(r"(Training|Epoch \d+): .*?it/s.*?\]", "", done.stdout)  # the bar of Lightning 2.5
    assert without_numbers(shown) in without_numbers(said)
    (line,) = re.findall(r"train\.py:(\d+)", shown)
    assert {line} == {*re.findall(r"train\.py:(\d+)", done.stdout)}
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", shown)]
    assert losses == sorted(losses, reverse=True)


@pytest.mark.skipif(not hasattr(torch.compiler, "is_exporting"), reason="torch 2.6 asks the driver of fake tensors")
def test_the_script_of_the_front_page_makes_no_tensor_beside_the_device_of_its_model():
    names = {}
    exec(blocks("README.md", "python")[0].partition("torch.manual_seed(0)")[0], names)
    with FakeTensorMode():
        with torch.device("cuda"):
            model, text = names["Model"](), torch.randint(32, (8, 33))
        assert model.training_step(text, 1).device.type == "cuda"


def without_numbers(text):
    """The demo takes more steps than the test: their count differs, and the size of a gradient."""
    return re.sub(r"\d+(\.\d+)?", "0", " ".join(text.split()))
