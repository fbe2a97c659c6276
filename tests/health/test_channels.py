"""Where the channels of a tensor stand, told from the order in which the model defines its layers."""

import pytest
import torch
from torch import nn

from hookboard.model.layers import ChannelDims, layers_of
from hookboard.model.selection import named_submodules
from hookboard.model.sites import Site
from hookboard.model.state import weights_of

MODEL = nn.ModuleDict(
    {
        "conv": nn.Conv1d(3, 4, 3),
        "relu": nn.ReLU(),
        "block": nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
        "gelu": nn.GELU(),
        "norm": nn.BatchNorm1d(4),
        "tanh": nn.Tanh(),
        "lstm": nn.LSTM(4, 4, batch_first=True),
        "last": nn.Sigmoid(),
    }
)


def dims():
    modules = {"": MODEL, **dict(named_submodules(MODEL))}
    return ChannelDims(layers_of(modules, weights_of(modules)))


FIRST = ["conv", "relu", "norm", "tanh"]
LAST = ["block.self_attn", "block.linear1", "block.dropout", "block", "gelu", "lstm", "last", ""]
EXPECTED = dict.fromkeys(FIRST, 1) | dict.fromkeys(LAST, 2)


@pytest.mark.parametrize("names", [sorted(EXPECTED), sorted(EXPECTED)[::-1]], ids=["in one order", "in the other"])
@pytest.mark.parametrize("role", ["output", "grad_output"])
def test_a_layer_without_weights_has_its_channels_where_the_one_before_it_has_them(role, names):
    asked = dims()
    assert {name: asked(Site(name, role), torch.zeros(2, 4, 5)) for name in names} == EXPECTED


def test_a_weight_and_a_convolution_without_a_batch_have_units_first_and_a_vector_or_mere_moments_have_none():
    assert dims()(Site("conv", "output"), torch.zeros(4, 5)) == 0
    assert dims()(Site("conv.weight", "parameter_before"), torch.zeros(4, 3, 3)) == 0
    assert dims()(Site("conv.weight", "parameter_grad"), torch.zeros(4, 3, 3)) == 0
    assert dims()(Site("conv.bias", "parameter_before"), torch.zeros(4)) is None
    assert dims()(Site("conv.weight", "parameter_update"), torch.zeros(4, 3, 3)) is None
    assert dims()(Site("relu", "output"), torch.zeros(4)) is None
