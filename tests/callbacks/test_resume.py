"""A fit that is continued from a checkpoint knows what the fit before it knew: as if it had never been interrupted."""

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from torch import nn

from hookboard import (
    HealthMonitor,
)
from hookboard.callbacks.budget import OVERHEAD

STEPS, CUT = 48, 21
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
        while self.at < self.batches:
            self.at += 1
            yield self.data[self.at - 1]
        self.at = 0

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
        if at >= self.ill.get("nan", STEPS):
            loss = loss * torch.log(-self.net[0](x).abs().sum() - 1)
        if at >= self.ill.get("cut off", STEPS):
            loss = loss.detach() + 0 * self.net[6](x.new_ones(8, 8)).sum()
        if at >= self.ill.get("stands still", STEPS):
            self.optimizers().param_groups[0]["lr"] = 0.0
        return loss

    def validation_step(self, batch):
        self.net(batch[0] + self.ill.get("other data", 0))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def trainer(folder, *callbacks, version="", **options):
    given = {
        "accelerator": "cpu",
        "max_epochs": 1,
        "log_every_n_steps": 2,
        "logger": TensorBoardLogger(folder, name=None, version=version),
        "limit_val_batches": 0,
        "enable_checkpointing": any(isinstance(callback, ModelCheckpoint) for callback in callbacks),
        "enable_model_summary": False,
        "enable_progress_bar": False,
        "num_sanity_val_steps": 0,
        "callbacks": list(callbacks),
    }
    return Trainer(**given | options)


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
                if value.tag not in (OVERHEAD, "epoch", "hp_metric") and not value.tag.startswith("_hparams"):
                    found.setdefault(value.tag, {})[event.step] = value.tensor
    return found


def last_of(folder, *beginnings):
    """Tag to the bytes that were written last, of the tags that begin so."""
    found = values_in(folder)
    return {tag: found[tag][max(found[tag])].SerializeToString() for tag in found if tag.startswith(beginnings)}


def monitor(**options):
    return [HealthMonitor(every_n_steps=2, **options)]


FAULTS = {
    "nothing": {},
    "a layer that was dead from the start": {"dead": 0},
    "a layer that died before": {"dead": 10},
    "a layer that dies right before": {"dead": CUT - 3},
    "a layer that dies later": {"dead": 30},
    "a spike before": {"spike": 18},
    "a spike right before": {"spike": CUT - 1},
    "a spike later": {"spike": 27},
    "NaN before": {"nan": 12},
    "NaN right before": {"nan": CUT - 1},
    "NaN later": {"nan": CUT},
    "weights that stand still since before": {"stands still": 12},
    "a gradient that is cut off since before": {"cut off": 12},
    "validation on other data": {"other data": 10},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fit_that_is_continued_says_and_shows_what_an_uninterrupted_one_does(fault, tmp_path):
    options = {"limit_val_batches": 2, "val_check_interval": 6} if "validation" in fault else {}
    (one,) = whole(tmp_path / "whole", monitor, FAULTS[fault], **options)
    (two,) = in_two(tmp_path / "in two", monitor, FAULTS[fault], **options)
    assert two.verdicts == one.verdicts
    beginnings = ("health/", "hookboard/")
    assert last_of(tmp_path / "in two", *beginnings) == last_of(tmp_path / "whole", *beginnings)
