"""Recordings of other versions of torch, which `versions.py` wrote: equal to those of this one up to rounding."""

from pathlib import Path

import pytest
from comparing.nets import planted
from comparing.versions import MODELS, loss, made

from hookboard import compare

VERSIONS = sorted((Path(__file__).parent / "recordings").iterdir())
MISTAKES = {
    "resnet": ("4.bn2 (output)", lambda net: setattr(net[4].bn2, "eps", 1e-2)),
    "transformer": ("layers.layers.1.linear2 (output)", lambda net: net.layers.layers[1].linear2.bias.zero_()),
    "lstm": ("lstm (output 0)", lambda net: net.lstm.weight_hh_l1.mul_(1.02)),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
def test_a_recording_of_another_version_is_equal_to_the_model_here_and_a_mistake_is_found(version, name):
    recording, (_, inputs), (where, change) = version / f"{name}.zip", MODELS[name], MISTAKES[name]
    assert compare(recording, made(name), inputs, loss=loss).differences == ()
    assert str(compare(recording, planted(made(name), change), inputs, loss=loss).first.spot) == where
