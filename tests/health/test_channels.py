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


@pytest.mark.parametrize(
    ("name", "dim"),
    [
        ("conv", 1),
        ("relu", 1),
        ("block.self_attn", 2),
        ("block.linear1", 2),
        ("block.dropout", 2),
        ("block", 2),
        ("gelu", 2),
        ("norm", 1),
        ("tanh", 1),
        ("lstm", 2),
        ("last", 2),
        ("", 2),
    ],
)
@pytest.mark.parametrize("role", ["output", "grad_output"])
def test_a_layer_without_weights_has_its_channels_where_the_one_before_it_has_them(name, dim, role):
    assert dims()(Site(name, role), torch.zeros(2, 4, 5)) == dim


def test_asked_in_another_order_it_says_the_same():
    here, there = dims(), dims()
    names = ["last", "relu", "gelu", "relu", "tanh", "block"]
    asked = [here(Site(name, "output"), torch.zeros(2, 4, 5)) for name in names]
    assert asked[::-1] == [there(Site(name, "output"), torch.zeros(2, 4, 5)) for name in names[::-1]]


def test_the_recorder_may_ask_for_a_few_layers_alone_once_it_has_asked_for_all():
    modules = {name: MODEL[name] for name in ("conv", "relu", "lstm", "tanh")}
    asked = ChannelDims(layers_of(modules, weights_of(modules)))
    tensor = torch.zeros(2, 4, 5)
    first = {name: asked(Site(name, "output"), tensor) for name in modules}
    assert first == {"conv": 1, "relu": 1, "lstm": 2, "tanh": 2}
    assert [asked(Site(name, "output"), tensor) for name in ("tanh", "relu")] == [2, 1]


def test_a_convolution_without_a_batch_has_its_channels_first():
    assert dims()(Site("conv", "output"), torch.zeros(4, 5)) == 0


def test_a_weight_has_its_units_first_and_a_vector_or_what_has_only_moments_has_none():
    assert dims()(Site("conv.weight", "parameter_before"), torch.zeros(4, 3, 3)) == 0
    assert dims()(Site("conv.weight", "parameter_grad"), torch.zeros(4, 3, 3)) == 0
    assert dims()(Site("conv.bias", "parameter_before"), torch.zeros(4)) is None
    assert dims()(Site("conv.weight", "parameter_update"), torch.zeros(4, 3, 3)) is None
    assert dims()(Site("relu", "output"), torch.zeros(4)) is None
