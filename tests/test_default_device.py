"""What hookboard computes on the host stays there, whatever `torch.set_default_device` says."""

import numpy as np
import pytest
import torch
from torch import nn

from hookboard import compare, record
from hookboard.comparing.recorded import rounding_noise
from hookboard.images.feature_maps import maps_in, select_maps
from hookboard.images.picture import unnormalized
from hookboard.tracing.bad_operation import BadOperation, CallPlace
from hookboard.tracing.explain import _cause

SGD = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=1.0)
X = torch.arange(12.0).reshape(3, 4)
PICTURES = torch.rand(2, 3, 4, 4)


def empty_tensor_of_a_recording(folder):
    net = nn.Identity()
    record(net, torch.ones(0, 4, device="cpu"), folder / "one")
    return str(compare(folder / "one", net, torch.ones(0, 4, device="cpu")))


WAYS = {
    "noise of the size of rounding": lambda _: rounding_noise(0.1, 0)(X).tolist(),
    "channels of a picture": lambda _: select_maps(
        maps_in(PICTURES, nn.Conv2d(3, 3, 1, device="cpu"), aspect=None), channels=2, size=4
    ).values.tolist(),
    "a photo": lambda _: unnormalized(PICTURES, [0.5] * 3, [0.2] * 3).tolist(),
    "a function without a tensor": lambda _: _cause(BadOperation(["log"], "made", CallPlace(), {}, None)),
    "an empty tensor of a recording": empty_tensor_of_a_recording,
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_default_device_changes_nothing_on_the_host(way, tmp_path):
    (tmp_path / "with").mkdir()
    (tmp_path / "without").mkdir()
    without = way(tmp_path / "without")
    with torch.device("meta"):
        assert np.array_equal(np.array(way(tmp_path / "with"), object), np.array(without, object))
