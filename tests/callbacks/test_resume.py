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

    def __init__(self, size=8, batches=STEPS, classes=3):
        self.batches, self.at = batches, 0
        generator = torch.Generator().manual_seed(1)
        self.middles = torch.randn(classes, 4, generator=generator)
        self.data = []
        for _ in range(batches):
            labels = torch.randint(classes, (size,), generator=generator)
            self.data.append((self.middles[labels] + 0.3 * torch.randn(size, 4, generator=generator), labels))

    def __len__(self):
        return self.batches

    def __iter__(self):
        self.at %= self.batches
        while self.at < self.batches:
            self.at += 1
            yield self.data[self.at - 1]

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def validation():
    return torch.utils.data.DataLoader(Loader(batches=2).data, batch_size=None)


class Model(LightningModule):
    """A small classifier that falls ill as it is told to: fault to the batch from which on it lasts."""

    def __init__(self, ill=None, net=None):
        super().__init__()
        torch.manual_seed(0)
        self.net = net or nn.Sequential(
            nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 3)
        )
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
        self.ill = ill or {}

    def training_step(self, batch):
        x, labels = batch
        at = int(self.seen)
        self.seen += 1
        if "dead" in self.ill and at >= self.ill["dead"]:
            with torch.no_grad():
                self.net[0].weight.zero_()
                self.net[0].bias.fill_(-1.0)
        if at == self.ill.get("spike"):
            x = 100 * x
        torch.manual_seed(at)
        loss = nn.functional.cross_entropy(self.net(x), labels)
        if at >= self.ill.get("nan", math.inf):
            loss = loss * torch.log(-self.net[0](x).abs().sum() - 1)
        if at >= self.ill.get("stands still", math.inf):
            self.optimizers().param_groups[0]["lr"] = 0.0
        return loss

    def validation_step(self, batch):
        self.net(batch[0] + self.ill.get("other data", 0))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def trainer(folder, *callbacks, **options):
    saves = any(isinstance(callback, Checkpoint) for callback in callbacks)
    plain = {"log_every_n_steps": 2, "num_sanity_val_steps": 0, "enable_checkpointing": saves}
    return toys.trainer(folder, *callbacks, **plain | options)


class Stops(Callback):
    """Saves a checkpoint and ends the fit after this many batches."""

    def __init__(self, path, after=CUT):
        self.path, self.after, self.count = path, after, 0

    def on_train_batch_end(self, trainer, pl_module, *args):
        self.count += 1
        if self.count == self.after:
            trainer.save_checkpoint(self.path)
            trainer.should_stop = True


def whole(folder, make, ill=None, **options):
    """A fit that nothing interrupts, with these callbacks."""
    callbacks = make()
    trainer(folder, *callbacks, **options).fit(Model(ill), Loader(), validation())
    return callbacks


def in_two(folder, make, ill=None, **options):
    """The same fit, interrupted in the middle and continued by another Trainer with other callbacks."""
    path = folder.parent / f"{folder.name}.ckpt"
    trainer(folder, *make(), Stops(path), **options).fit(Model(ill), Loader(), validation())
    callbacks = make()
    trainer(folder, *callbacks, **options).fit(Model(ill), Loader(), validation(), ckpt_path=path)
    return callbacks


def values_in(folder):
    """Tag to step to the value that was written last."""
    found = {}
    for path in sorted(folder.rglob("events.*"), key=lambda path: path.stat().st_mtime_ns):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.tag not in ("epoch", "hp_metric") and not value.tag.startswith("_hparams"):
                    found.setdefault(value.tag, {})[event.step] = value.tensor
    return found


OF_HEALTH = ("health/", "hookboard/")


def last_of(folder, *beginnings):
    """Tag to the bytes that were written last, of the tags that begin so."""
    found = values_in(folder)
    return {tag: found[tag][max(found[tag])].SerializeToString() for tag in found if tag.startswith(beginnings)}


def monitor(**options):
    return [HealthMonitor(every_n_steps=2, **options)]


@pytest.mark.filterwarnings("ignore")
def test_a_healthy_fit_that_is_continued_is_healthy_and_judged_by_all_its_losses(tmp_path):
    (one,) = whole(tmp_path / "whole", monitor)
    (two,) = in_two(tmp_path / "in two", monitor)
    assert two.verdicts == one.verdicts == ()
    assert two._run.losses.first[: CUT - 1] == one._run.losses.first[: CUT - 1]
    # Those between the last look and the checkpoint are not kept.
    steps = [loss.step for loss in two._run.losses.recent]
    assert steps == [step for step in range(STEPS) if step != CUT - 1]
    assert two._run.losses.chance == one._run.losses.chance


@pytest.mark.filterwarnings("ignore")
def test_what_has_begun_before_is_found_again(tmp_path):
    (two,) = in_two(tmp_path, monitor, {"dead": 10})
    found = {(verdict.rule, verdict.module): verdict.since for verdict in two.verdicts}
    assert found["no_gradient", "net.0"] >= CUT


@pytest.mark.filterwarnings("ignore")
def test_the_looks_are_at_the_same_steps(tmp_path):
    (one,), (two,) = whole(tmp_path / "whole", monitor), in_two(tmp_path / "in two", monitor)
    assert two._run.course_steps == [step for step in one._run.course_steps if step >= CUT]


class Pictured(Model):
    """Its convolutions see the four numbers as a picture."""

    def __init__(self):
        torch.manual_seed(0)
        shape = nn.Unflatten(1, (1, 2, 2))
        super().__init__(net=nn.Sequential(shape, nn.Conv2d(1, 4, 3, padding=1), nn.Flatten(), nn.Linear(16, 3)))


def loggers(**options):
    return [
        HealthMonitor(every_n_steps=2, **options),
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
        trainer(folder / "whole", *loggers(), **options).fit(Pictured(), Loader(), validation())
        # The second part ends what the first one has begun to measure.
        saves = ModelCheckpoint(folder, filename="middle", every_n_train_steps=15)
        trainer(folder / "two", *loggers(), saves, **options, max_steps=19).fit(Pictured(), Loader(), validation())
        time.sleep(1)  # TensorBoard reads the files of a second by their names, the tenth before the ninth
        again = trainer(folder / "two", *loggers(), **options)
        again.fit(Pictured(), Loader(), validation(), ckpt_path=folder / "middle.ckpt")
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
