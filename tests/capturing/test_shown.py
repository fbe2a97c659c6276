"""What a prompt shows of captured tensors and of readings."""

import numpy as np
import pytest
import torch
from torch import nn
from toys import Toy, batches, fit, mlp

from hookboard import ActivationLogger, capture
from hookboard.images.picture import BAR_HEIGHT, HEAT, LEVELS

pytestmark = pytest.mark.trains


def seen_of(net, x):
    torch.manual_seed(0)
    with capture(net, roles=["input", "output"]) as seen:
        net(x)
    return seen


def test_the_image_is_bright_where_the_tensor_is_large():
    x = torch.zeros(1, 1, 8, 8)
    x[0, 0, 2, 6] = 1.0
    drawn = np.asarray(seen_of(nn.Sequential(nn.Identity()), x)["0"].image().convert("RGB"))[:-BAR_HEIGHT]
    dark, bright = (np.argwhere((drawn == HEAT[level]).all(axis=2)) for level in (0, LEVELS - 1))
    (top, left), (bottom, right) = np.minimum(dark.min(0), bright.min(0)), np.maximum(dark.max(0), bright.max(0)) + 1
    centre = (bright.mean(0) + 0.5 - (top, left)) / (bottom - top, right - left) * 8
    np.testing.assert_allclose(centre, [2.5, 6.5], atol=0.1)
    assert len(bright) == len(dark) / 63


def test_an_image_of_what_cannot_be_drawn_says_so():
    seen = seen_of(nn.Sequential(nn.Flatten(0), nn.Linear(64, 1)), torch.rand(1, 1, 8, 8))
    with pytest.raises(LookupError, match="grad_output"):
        seen["0"].image("grad_output")


def test_the_readings_of_a_callback_are_shown_as_a_table(tmp_path):
    logger = ActivationLogger(every_n_steps=1, statistics=["mean", "std"])
    assert repr(logger.readings) == "()"
    fit(tmp_path, Toy(mlp()), batches(4), logger)
    header, *lines = repr(logger.readings).splitlines()
    assert header.split() == ["name", "tensor", "mean", "std"]
    assert [line.split()[0] for line in lines] == ["net.0", "net.1", "net.2"]
