"""Every two callbacks in one Trainer: neither the run nor what the other writes changes.

An Intervention stands before and behind each. Of two others, which cannot change a tensor, one order is tried, and each
callback stands first in half of its pairs.
"""

from itertools import combinations
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn
from toys import CALLBACKS, records, trainer

import hookboard
from hookboard import (
    ActivationLogger,
    CAMLogger,
    FeatureMapLogger,
    GradientLogger,
    HealthMonitor,
    Intervention,
    KernelLogger,
    Noise,
    ParameterLogger,
)
from hookboard.base.records import HEALTH

BOTH = ["train", "validate"]
MAKE = {
    "ActivationLogger": lambda: ActivationLogger(roles=["input", "output"], stages=BOTH, histogram=True),
    "GradientLogger": lambda: GradientLogger(roles=["grad_output", "grad_input", "parameter_grad"], histogram=True),
    "ParameterLogger": lambda: ParameterLogger(statistics=["mean", "update_norm", "update_ratio"]),
    "FeatureMapLogger": lambda: FeatureMapLogger(every_n_steps=1),
    "HealthMonitor": lambda: HealthMonitor(every_n_steps=1),
    "KernelLogger": lambda: KernelLogger(every_n_steps=1),
    "CAMLogger": lambda: CAMLogger(every_n_steps=1),
    # Noise draws from a generator of its own: an extra call of the model would show in all that follows.
    "Intervention": lambda: Intervention(Noise(0.5), "conv", stages=BOTH),
}
# What Checkup writes differs from run to run: it says how long it took.
NAMES = [*MAKE, *sorted({*CALLBACKS} - {*MAKE, "Checkup"})]
LOOKERS = [name for name in NAMES if name != "Intervention"]
LOOKING = [pair if i % 2 else pair[::-1] for i, pair in enumerate(combinations(LOOKERS, 2))]
PAIRS = LOOKING + [pair for name in LOOKERS for pair in ((name, "Intervention"), ("Intervention", name))]

pytestmark = [
    pytest.mark.trains,
    pytest.mark.xdist_group("pairs"),  # one worker runs them all: each run is compared with several others
    # The input pictures need no gradient, so the first module passes none back.
    pytest.mark.filterwarnings("ignore:hookboard. GradientLogger. [0-9]+ of [0-9]+ sites"),
]


class Classifier(LightningModule):
    """Its state moves in each forward pass: BatchNorm's averages, what dropout draws, what ReLU overwrites."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(4, 5)
        self.losses = []

    def forward(self, pictures):
        return self.head(self.drop(self.relu(self.norm(self.conv(pictures)))).mean((2, 3)))

    def training_step(self, batch):
        pictures, labels = batch
        loss = nn.functional.cross_entropy(self(pictures), labels)
        self.losses.append(loss.detach().clone())
        return loss

    def validation_step(self, batch):
        self.losses.append(nn.functional.cross_entropy(self(batch[0]), batch[1]).detach())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def run(folder, *names):
    """The state after three steps and as many validations beside callbacks, and what these wrote by tag and step."""
    torch.manual_seed(0)
    model = Classifier()
    labelled = [(torch.rand(4, 3, 8, 8), torch.arange(4)) for _ in range(3)]
    data = torch.utils.data.DataLoader(labelled, batch_size=None)
    loops = {"limit_val_batches": 1, "val_check_interval": 1, "num_sanity_val_steps": 0}
    # Of those that `MAKE` says nothing of, `every_n_steps` is all that they are to be given.
    made = (MAKE[name]() if name in MAKE else getattr(hookboard, name)(every_n_steps=1) for name in names)
    trainer(folder, *made, **loops).fit(model, data, data)
    state = {**model.state_dict(), "losses": torch.stack(model.losses), "random state": torch.get_rng_state()}
    written = {}
    for event in records(folder):
        for value in event.summary.value:
            if "/" in value.tag:  # what Lightning itself writes has no slash
                points = written.setdefault(value.tag, {})
                # The record is written anew at the end of the fit, and the last one counts.
                assert event.step not in points or value.tag == HEALTH, (value.tag, event.step)
                points[event.step] = value.SerializeToString()
    return SimpleNamespace(state=state, written=written)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The run beside these callbacks, each made once."""
    runs = {}

    def ask(*names):
        if names not in runs:
            runs[names] = run(tmp_path_factory.mktemp("pairs"), *names)
        return runs[names]

    return ask


def different(mine, theirs):
    """What of two states or of two logs is not the same."""
    same = [key for key in mine.keys() & theirs.keys() if is_same(mine[key], theirs[key])]
    return sorted((mine.keys() | theirs.keys()) - set(same))


def is_same(mine, theirs):
    return mine.equal(theirs) if isinstance(mine, torch.Tensor) else mine == theirs


@pytest.mark.parametrize("name", MAKE)
def test_each_writes_something_alone_and_leaves_every_bit_of_the_run_if_it_only_looks(ran, name):
    assert ran(name).written
    assert (different(ran(name).state, ran().state) == []) == (name != "Intervention")


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=map("-".join, PAIRS))
def test_the_run_beside_two_is_that_without_them_or_beside_the_intervention_alone(ran, first, second):
    without = [name for name in (first, second) if name == "Intervention"]
    assert different(ran(first, second).state, ran(*without).state) == []


@pytest.mark.parametrize(("first", "second"), LOOKING, ids=map("-".join, LOOKING))
def test_two_write_what_each_writes_alone(ran, first, second):
    assert ran(first).written.keys().isdisjoint(ran(second).written)
    assert different(ran(first, second).written, ran(first).written | ran(second).written) == []


@pytest.mark.parametrize("name", LOOKERS)
def test_beside_an_intervention_the_order_makes_no_difference(ran, name):
    behind, before = ran("Intervention", name).written, ran(name, "Intervention").written
    assert behind.keys() == ran("Intervention").written.keys() | ran(name).written.keys()
    assert different(behind, before) == []
