"""A fault that is put in by hand is caught, and the smallest set of circumstances that shows it is named."""

from dataclasses import replace

import pytest
from combinations.circumstances import AXES
from combinations.holding import faults
from combinations.shrinking import kinds, shrunk
from lightning.pytorch import Callback

from hookboard import ActivationLogger

pytestmark = pytest.mark.trains

TEACHER = "a frozen pre norm teacher in evaluation mode"
NOISE = "weights with noise at each call"


class HooksEverything(Callback):
    """torch sees its hooks, and leaves its fused path."""

    def on_fit_start(self, trainer, pl_module):
        self.handles = [module.register_forward_hook(lambda *given: None) for module in pl_module.modules()]

    def teardown(self, trainer, pl_module, stage):
        for handle in self.handles:
            handle.remove()


class ReadsWeights(Callback):
    """Has a parametrization compute a weight once more."""

    def on_train_batch_end(self, trainer, pl_module, *args):
        pl_module.net.linear.weight.sum()


class LeavesAHook(Callback):
    def on_fit_start(self, trainer, pl_module):
        pl_module.head.register_forward_hook(lambda *given: None)


class Doubles(ActivationLogger):
    """What it says is twice what it measured."""

    @property
    def readings(self):
        twice = [{name: 2 * value for name, value in reading.statistics.items()} for reading in super().readings]
        return tuple(replace(reading, statistics=s) for reading, s in zip(super().readings, twice, strict=True))


class SkipsTheHead(ActivationLogger):
    """Does not show one layer, and says nothing of it."""

    @property
    def readings(self):
        return tuple(reading for reading in super().readings if reading.site.name != "head")


@pytest.fixture
def plant(monkeypatch):
    """Has a callback of ours stand for one that is wrong."""

    def put(callback):
        monkeypatch.setitem(AXES["ours"], "planted", lambda case: case.ours.append(callback))

    return put


@pytest.mark.parametrize(
    ("callback", "where", "kind"),
    [
        (HooksEverything, [TEACHER], "disturbed"),
        (ReadsWeights, [NOISE], "disturbed"),
        (LeavesAHook, [], "left behind"),
        (lambda: Doubles(every_n_steps=1), [], "untrue"),
        (lambda: SkipsTheHead(every_n_steps=1), [], "missing"),
    ],
    ids=["hooks that torch sees", "a weight computed again", "a hook left", "a wrong number", "a silent gap"],
)
def test_a_fault_put_in_by_hand_is_caught(plant, tmp_path, callback, where, kind):
    plant(callback)
    assert kinds(faults([*where, "planted"], tmp_path)) == {kind}


def test_the_smallest_set_of_circumstances_is_named(plant, tmp_path):
    plant(ReadsWeights)
    names = ["a recurrent network", NOISE, "a gradient penalty", "double precision", "planted"]
    few = shrunk(names, faults(names, tmp_path), lambda fewer: faults(fewer, tmp_path))
    assert few == [NOISE, "planted"]


def test_without_a_fault_nothing_is_found(plant, tmp_path):
    plant(lambda: ActivationLogger(every_n_steps=1))
    assert faults(["a recurrent network", "double precision", "planted"], tmp_path) == []
