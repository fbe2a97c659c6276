"""Recordings of other versions of torch, which `versions.py` wrote: equal to those of this one up to rounding."""

from pathlib import Path

import pytest
from comparing.nets import planted
from comparing.versions import MODELS, loss, made

from hookboard import compare

VERSIONS = sorted((Path(__file__).parent / "recordings").iterdir())
MISTAKES = {
    "convnet": ("3 (output)", lambda net: net[3].weight.mul_(1.02)),
    "resnet": ("4.bn2 (output)", lambda net: setattr(net[4].bn2, "eps", 1e-2)),
    "transformer": ("layers.layers.1.linear2 (output)", lambda net: net.layers.layers[1].linear2.bias.zero_()),
    "lstm": ("lstm (output 0)", lambda net: net.lstm.weight_hh_l1.mul_(1.02)),
}

pytestmark = [
    pytest.mark.parametrize("name", MODELS),
    pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name),
]


def test_a_recording_of_another_version_is_equal_to_the_model_here(version, name):
    assert compare(version / f"{name}.zip", made(name), MODELS[name][1], loss=loss).differences == ()


def test_a_mistake_is_found_beside_a_recording_of_another_version(version, name):
    where, change = MISTAKES[name]
    found = compare(version / f"{name}.zip", planted(made(name), change), MODELS[name][1], loss=loss)
    assert str(found.first.spot) == where
