"""A fit that is continued from a checkpoint logs at the same steps, and is judged by all its losses."""

import math
import time
import warnings

import pytest
import torch
import toys
from board import logs
from lateness import make_late
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from torch import nn

from hookboard import ActivationLogger, GradientLogger, HealthMonitor, ParameterLogger

STEPS, CUT = 32, 21
"""How many batches a fit has, and behind how many of them it is interrupted."""


class Loader:
    """Digits to be told apart, batch by batch; a fit that is continued goes on behind the last one."""

    def __init__(self, batches=STEPS):
        generator = torch.Generator().manual_seed(1)
        middles = torch.randn(3, 4, generator=generator)
        self.data, self.at = [], 0
        for _ in range(batches):
            labels = torch.randint(3, (8,), generator=generator)
            self.data.append((middles[labels] + 0.3 * torch.randn(8, 4, generator=generator), labels))

    def __len__(self):
        return len(self.data)

    def __iter__(self):
        self.at %= len(self.data)
        while self.at < len(self.data):
            self.at += 1
            yield self.data[self.at - 1]

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Model(LightningModule):
    """A small classifier whose first layer dies at a batch, if it is told to."""

    def __init__(self, dead_from=math.inf, net=None):
        super().__init__()
        torch.manual_seed(0)
        self.net = net or nn.Sequential(
            nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 3)
        )
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
        self.dead_from = dead_from

    def training_step(self, batch):
        x, labels = batch
        at = int(self.seen)
        self.seen += 1
        if at >= self.dead_from:
            with torch.no_grad():
                self.net[0].weight.zero_()
                self.net[0].bias.fill_(-1.0)
        torch.manual_seed(at)
        return nn.functional.cross_entropy(self.net(x), labels)

    def validation_step(self, batch):
        self.net(batch[0])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def trainer(folder, *callbacks, **options):
    saves = any(isinstance(callback, Checkpoint) for callback in callbacks)
    plain = {"log_every_n_steps": 2, "num_sanity_val_steps": 0, "enable_checkpointing": saves}
    return toys.trainer(folder, *callbacks, **plain | options)


class Stops(Callback):
    """Saves a checkpoint behind some batches and ends the fit."""

    def __init__(self, path):
        self.path, self.count = path, 0

    def on_train_batch_end(self, trainer, pl_module, *args):
        self.count += 1
        if self.count == CUT:
            trainer.save_checkpoint(self.path)
            trainer.should_stop = True


def fit(folder, model, *callbacks, path=None, **options):
    validation = torch.utils.data.DataLoader(Loader(batches=2).data, batch_size=None)
    trainer(folder, *callbacks, **options).fit(model, Loader(), validation, ckpt_path=path)


def whole(folder):
    """The monitor of a fit that nothing interrupts."""
    monitor = HealthMonitor(every_n_steps=2)
    fit(folder, Model(), monitor)
    return monitor


def in_two(folder, **fault):
    """The monitor of the second part of that fit, in which another Trainer continues what was interrupted."""
    path = folder.parent / f"{folder.name}.ckpt"
    fit(folder, Model(**fault), HealthMonitor(every_n_steps=2), Stops(path))
    monitor = HealthMonitor(every_n_steps=2)
    fit(folder, Model(**fault), monitor, path=path)
    return monitor


def values_in(folder):
    """Tag to step to the value that was written last."""
    found = {}
    for path in sorted(folder.rglob("events.*"), key=lambda path: path.stat().st_mtime_ns):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.tag not in ("epoch", "hp_metric") and not value.tag.startswith("_hparams"):
                    found.setdefault(value.tag, {})[event.step] = value.tensor
    return found


@pytest.mark.filterwarnings("ignore")
def test_a_healthy_fit_that_is_continued_is_healthy_and_judged_by_all_its_losses_at_the_same_steps(tmp_path):
    one, two = whole(tmp_path / "whole"), in_two(tmp_path / "in two")
    assert two.verdicts == one.verdicts == ()
    assert two._run.losses.first[: CUT - 1] == one._run.losses.first[: CUT - 1]
    # Those between the last look and the checkpoint are not kept.
    steps = [loss.step for loss in two._run.losses.recent]
    assert steps == [step for step in range(STEPS) if step != CUT - 1]
    assert two._run.losses.chance == one._run.losses.chance
    assert two._run.course_steps == [step for step in one._run.course_steps if step >= CUT]


@pytest.mark.filterwarnings("ignore")
def test_what_has_begun_before_is_found_again(tmp_path):
    found = {(verdict.rule, verdict.module): verdict.since for verdict in in_two(tmp_path, dead_from=10).verdicts}
    assert found["no_gradient", "net.0"] >= CUT


class Pictured(Model):
    """Its convolutions see the four numbers as a picture."""

    def __init__(self):
        torch.manual_seed(0)
        shape = nn.Unflatten(1, (1, 2, 2))
        super().__init__(net=nn.Sequential(shape, nn.Conv2d(1, 4, 3, padding=1), nn.Flatten(), nn.Linear(16, 3)))


def loggers():
    return [
        HealthMonitor(every_n_steps=2),
        ActivationLogger(every_n_steps=2, roles=["output", "input"]),
        GradientLogger(every_n_steps=2),
        ParameterLogger(every_n_steps=2, statistics=["mean", "update_ratio"]),
    ]


@pytest.fixture(scope="module", params=["at once", "late"])
def two_runs(request, tmp_path_factory):
    """The folders of a fit, and of the same fit in two parts, with a validation at each sixth step."""
    folder, options = tmp_path_factory.mktemp("runs"), {"limit_val_batches": 1, "val_check_interval": 6}
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if request.param == "late":
            make_late(patch)
        fit(folder / "whole", Pictured(), *loggers(), **options)
        # The second part ends what the first one has begun to measure.
        saves = ModelCheckpoint(folder, filename="middle", every_n_train_steps=15)
        fit(folder / "two", Pictured(), *loggers(), saves, **options, max_steps=19)
        time.sleep(1)  # TensorBoard reads the files of a second by their names, the tenth before the ninth
        fit(folder / "two", Pictured(), *loggers(), path=folder / "middle.ckpt", **options)
    return folder / "whole", folder / "two"


OFTEN = ("activation_", "input_", "gradient_", "parameter_")


@pytest.mark.filterwarnings("ignore")
def test_every_curve_is_that_of_an_uninterrupted_fit(two_runs):
    one, two = map(values_in, two_runs)
    tags = [tag for tag in one if tag.startswith(OFTEN)]
    assert len({tag.partition("/")[0] for tag in tags}) > 7
    assert set(tags) <= two.keys()
    for tag in tags:
        assert {step: value.SerializeToString() for step, value in two[tag].items()} == {
            step: value.SerializeToString() for step, value in one[tag].items()
        }, tag


@pytest.mark.filterwarnings("ignore")
def test_the_tab_shows_each_step_of_both_files_once(two_runs):
    whole, two = two_runs
    assert len(list(two.glob("events.*"))) == 2
    with logs.slow(whole) as one, logs.slow(two) as other:
        _, run = one.ask("run", run=".")
        for series in run["series"]:
            given = {"run": ".", "series": series["id"], "columns": 64}
            expected, found = one.ask("map", **given)[1], other.ask("map", **given)[1]
            assert found["steps"] == expected["steps"]
            assert found["values"] == expected["values"]
        assert other.ask("run", run=".")[1]["layers"] == run["layers"]
