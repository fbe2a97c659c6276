"""A fit that is continued from a checkpoint knows what the fit before it knew: as if it had never been interrupted."""

import math
import warnings
from functools import partial

import pytest
import torch
import toys
from board import logs
from lateness import make_late
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint, OnExceptionCheckpoint
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from torch import nn

from hookboard import (
    ActivationLogger,
    FeatureMapLogger,
    GradientLogger,
    HealthMonitor,
    KernelLogger,
    ParameterLogger,
)

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


FAULTS = {
    "nothing": {},
    "a layer that died before": {"dead": 10},
    "a layer that dies right before": {"dead": CUT - 3},
    "a spike right before": {"spike": CUT - 1},
    "NaN right before": {"nan": CUT - 1},
    "NaN later": {"nan": CUT},
    "weights that stand still since before": {"stands still": 12},
    "validation on other data": {"other data": 10},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fit_that_is_continued_says_and_shows_what_an_uninterrupted_one_does(fault, tmp_path):
    options = {"limit_val_batches": 2, "val_check_interval": 6} if "validation" in fault else {}
    make = partial(monitor, audit=not fault.startswith("NaN later"))  # each fit reads its first step
    (one,) = whole(tmp_path / "whole", make, FAULTS[fault], **options)
    (two,) = in_two(tmp_path / "in two", make, FAULTS[fault], **options)
    assert two.verdicts == one.verdicts
    assert last_of(tmp_path / "in two", *OF_HEALTH) == last_of(tmp_path / "whole", *OF_HEALTH)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("at", [CUT - 2, CUT - 1])
def test_a_nan_that_the_host_does_not_know_of_yet_is_not_lost(at, tmp_path):
    make = partial(monitor, nonfinite="late", rules="nonfinite")
    (one,) = whole(tmp_path / "whole", make, {"nan": at})
    (two,) = in_two(tmp_path / "in two", make, {"nan": at})
    # Behind which look the host knows of it depends on how far it is ahead of the device.
    said = [(v.severity, v.rule, v.module, v.since, v.until, v.batch_idx) for v in one.verdicts]
    assert [(v.severity, v.rule, v.module, v.since, v.until, v.batch_idx) for v in two.verdicts] == said
    assert said[0][3] == at


def saved_by_lightning(folder, run):
    """After a step; the fit goes on for some more, so that the file of events has what the checkpoint does not know."""
    run(ModelCheckpoint(folder, filename="{step}", every_n_train_steps=5, save_top_k=-1), max_steps=13)
    return folder / "step=10.ckpt"


def saved_in_a_step(folder, run):
    """Behind the second of the batches that are accumulated, if there are several."""
    run(Stops(folder / "in a step.ckpt", after=22))
    return folder / "in a step.ckpt"


def saved_after_the_fit(folder, run):
    run(max_epochs=1).save_checkpoint(folder / "after.ckpt")
    return folder / "after.ckpt"


def saved_after_the_epoch(folder, run):
    run(ModelCheckpoint(folder, filename="at"), max_epochs=1)
    return folder / "at.ckpt"


def saved_after_validation(folder, run):
    class Saves(Callback):
        def on_validation_end(self, trainer, pl_module):
            if trainer.global_step == 8:
                trainer.save_checkpoint(folder / "validated.ckpt")
                trainer.should_stop = True

    run(Saves())
    return folder / "validated.ckpt"


WAYS = {
    "by Lightning": saved_by_lightning,
    "between batches": saved_in_a_step,
    "by hand after the fit": saved_after_the_fit,
    "after an epoch": saved_after_the_epoch,
    "after a validation": saved_after_validation,
}


def plain_net():
    """Its forward pass leaves nothing in it."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def fitted(folder, *callbacks, ckpt_path=None, **options):
    run = trainer(folder, *callbacks, **{"max_epochs": 2, **options})
    run.fit(Model({"dead": 6}, plain_net()), Loader(), validation(), ckpt_path=ckpt_path)
    return run


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The verdicts of a fit with these options that nothing interrupts, and what it wrote last; each is made once."""
    made = {}

    def ask(**options):
        key = tuple(sorted(options.items()))
        if key not in made:
            folder, one = tmp_path_factory.mktemp("whole"), HealthMonitor(every_n_steps=2)
            fitted(folder, one, **options)
            made[key] = one.verdicts, last_of(folder, *OF_HEALTH)
        return made[key]

    return ask


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("accumulated", [1, 4])
@pytest.mark.parametrize("way", WAYS)
def test_it_does_not_matter_when_the_checkpoint_is_written(way, accumulated, tmp_path, uninterrupted):
    options = {"accumulate_grad_batches": accumulated}
    if "validation" in way:
        options |= {"limit_val_batches": 2, "val_check_interval": 8 * accumulated}
    if "between" in way and accumulated > 1:
        pytest.skip("Lightning forgets the gradients of the batches that were accumulated: it is another training")
    verdicts, written = uninterrupted(**options)
    two = HealthMonitor(every_n_steps=2)
    path = WAYS[way](tmp_path, partial(fitted, tmp_path / "in two", HealthMonitor(every_n_steps=2), **options))
    fitted(tmp_path / "in two", two, ckpt_path=path, **options)
    assert verdicts
    assert two.verdicts == verdicts
    assert last_of(tmp_path / "in two", *OF_HEALTH) == written


class Breaks(Callback):
    """Fails once at this point of a batch, and leaves the model and the data as they were before it."""

    def __init__(self, point, at):
        self.point, self.at = point, at
        setattr(self, point, self.fail)

    def fail(self, trainer, pl_module, *args):
        if pl_module.seen == self.at + (self.point != "on_train_batch_start"):
            trainer.train_dataloader.at -= 1
            pl_module.seen.fill_(self.at)
            raise RuntimeError("on purpose")


class Losses(Callback):
    """Keeps how many losses the monitor knows of when the fit ends, and of which steps."""

    def on_train_end(self, trainer, pl_module):
        monitor = next(callback for callback in trainer.callbacks if isinstance(callback, HealthMonitor))
        losses = monitor._live["train"].reporter.judge.run.losses
        self.steps, self.is_mixed = [loss.step for loss in losses.recent], losses.is_mixed


POINTS = ["on_train_batch_start", "on_before_backward", "on_after_backward", "on_before_optimizer_step"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("point", "at"), [*((point, 21) for point in POINTS), (POINTS[-1], 20)])  # 21 is logged
def test_the_checkpoint_of_a_fit_that_fails_has_no_half_of_a_batch(point, at, tmp_path, uninterrupted):
    verdicts, _ = uninterrupted()
    two, losses = HealthMonitor(every_n_steps=2), Losses()
    broken = [HealthMonitor(every_n_steps=2), Breaks(point, at), OnExceptionCheckpoint(tmp_path)]
    with pytest.raises(RuntimeError, match="on purpose"):
        fitted(tmp_path / "in two", *broken)
    fitted(tmp_path / "in two", two, losses, ckpt_path=tmp_path / "on_exception.ckpt")
    # Lightning's own step axis leaves out the number of the step that failed.
    assert losses.steps == [step for step in range(65) if step != at][: len(losses.steps)]
    assert not losses.is_mixed
    assert [(v.severity, v.rule, v.module, v.since - (v.since > at)) for v in two.verdicts] == [
        (v.severity, v.rule, v.module, v.since) for v in verdicts
    ]


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
        KernelLogger(every_n_steps=8),
        FeatureMapLogger(every_n_steps=8),
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
        again = trainer(folder / "two", *loggers(), **options)
        again.fit(Pictured(), Loader(), validation(), ckpt_path=folder / "middle.ckpt")
    return folder / "whole", folder / "two"


OFTEN = ("activation_", "input_", "gradient_", "parameter_", "feature_maps/", "health/activation_rms/")
"""Tags that the end of a fit does not write once more."""


@pytest.mark.filterwarnings("ignore")
def test_every_curve_and_picture_is_that_of_an_uninterrupted_fit(two_runs):
    one, two = map(values_in, two_runs)
    assert one.keys() == two.keys()
    tags = [tag for tag in one if tag.startswith(OFTEN)]
    assert len({tag.partition("/")[0] for tag in tags}) > 7
    for tag in tags:
        assert {step: value.SerializeToString() for step, value in two[tag].items()} == {
            step: value.SerializeToString() for step, value in one[tag].items()
        }, tag
    records = [tag for tag in one if tag.startswith("hookboard/")]
    assert len(records) == 5
    assert last_of(two_runs[1], *records) == last_of(two_runs[0], *records)


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
        assert other.ask("run", run=".")[1]["verdicts"] == run["verdicts"]
        assert other.ask("run", run=".")[1]["layers"] == run["layers"]


class Late(nn.Module):
    """Its layers run in another order than they are defined, and one of them late; the first batch is a small one."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.late, self.last, self.first = nn.Linear(8, 8), nn.Linear(8, 3), nn.Linear(4, 8)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.calls += 1
        x = self.first(x)
        return self.last(self.late(x) if self.calls % 8 == 0 else x)


class Small(Loader):
    def __init__(self):
        super().__init__()
        self.data[0] = tuple(part[:3] for part in self.data[0])


@pytest.mark.filterwarnings("ignore")
def test_layers_keep_their_order_and_their_shapes_of_the_first_step(tmp_path):
    def make():
        return [HealthMonitor(every_n_steps=1), ActivationLogger(every_n_steps=1)]

    trainer(tmp_path / "whole", *make()).fit(Model(net=Late()), Small(), validation())
    trainer(tmp_path / "two", *make(), Stops(tmp_path / "middle")).fit(Model(net=Late()), Small(), validation())
    trainer(tmp_path / "two", *make()).fit(Model(net=Late()), Small(), validation(), ckpt_path=tmp_path / "middle")
    one, two = (last_of(tmp_path / name, "hookboard/layers") for name in ("whole", "two"))
    assert b'"output": [3, 8]' in one["hookboard/layers/ActivationLogger"]
    assert two == one
