"""Kinds of layers, known by torch's classes or by their names and parts; their weights, and the roles of tensors."""

from typing import get_args

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from hookboard.callbacks.numbers import ActivationRole, GradientRole
from hookboard.capturing.captured import CaptureRole
from hookboard.capturing.edits import EditRole
from hookboard.model.layers import ChannelDims, kind_of, layers_of
from hookboard.model.sites import OF_PARTS, ROLES, Role, Site
from hookboard.model.state import are_unchanged, weights_of


class LlamaRMSNorm(nn.Module):
    """As in transformers; others of the field write it alike."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


class ChannelNorm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1, size, 1, 1))


class LayerNorm2d(nn.LayerNorm):
    """As in timm and torchvision: for images."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class BatchNormAct2d(nn.BatchNorm2d):
    """As in timm: it rectifies what it has normalized."""

    def __init__(self, size: int, act: nn.Module) -> None:
        super().__init__(size)
        self.drop, self.act = nn.Identity(), act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(super().forward(x))


class PreNorm(nn.Module):
    """A block: what it normalizes goes through another layer."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.norm, self.fn = nn.LayerNorm(4), inside


class AdaptiveNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4, 4))


def named(name: str) -> nn.Module:
    return type(name, (nn.Module,), {})()


@pytest.mark.parametrize(
    "module",
    [LlamaRMSNorm(4), ChannelNorm(4), LayerNorm2d(4), named("L2Normalize"), nn.GroupNorm(2, 4)],
)
def test_a_norm_is_known_by_its_name_and_its_parts(module):
    assert kind_of(module) == "norm"


@pytest.mark.parametrize(
    "module",
    [PreNorm(nn.Linear(4, 4)), AdaptiveNorm(), *map(named, ("NormalNoise", "ActNorm", "_WeightNorm", "_SpectralNorm"))],
)
def test_what_only_has_a_name_like_that_is_no_norm(module):
    assert kind_of(module) == "other"


def test_a_batch_norm_that_rectifies_is_not_held_against_the_statistics_of_the_batch():
    both, off = BatchNormAct2d(4, nn.ReLU()), BatchNormAct2d(4, nn.Identity())
    layers = layers_of({"plain": nn.BatchNorm2d(4), "both": both, "off": off}, {})
    assert [layer.kind for layer in layers.values()] == ["norm", "activated_norm", "norm"]
    assert [layer.is_batch_norm for layer in layers.values()] == [True, False, True]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NewGELUActivation", "smooth"),
        ("Swish", "smooth"),
        ("MyLeakyReLU", "smooth"),
        ("ReLUSquaredActivation", "rectifier"),
        ("Rotary", "other"),
    ],
)
def test_an_activation_is_known_by_its_name(name, kind):
    assert kind_of(named(name)) == kind


def test_a_block_that_is_named_like_an_activation_is_none():
    assert kind_of(type("ConvReLU", (nn.Sequential,), {})(nn.Conv2d(1, 1, 1), nn.ReLU())) == "other"
    assert kind_of(type("SwiGLU", (nn.Module,), {})()) == "other"


@pytest.mark.parametrize(
    ("norm", "shape", "dim"),
    [
        (LlamaRMSNorm(4), (2, 7, 4), 2),
        (nn.LayerNorm(4), (2, 5, 5, 4), 3),
        (ChannelNorm(4), (2, 4, 5, 5), 1),
        (type("LayerNorm", (LayerNorm2d,), {})(4), (2, 4, 5, 5), 1),  # as in ConvNeXt: either, by an argument
        (LayerNorm2d(4), (2, 4, 5, 4), 1),
        (nn.LayerNorm(4), (2, 4, 4), 2),
    ],
)
def test_the_channels_of_a_norm_stand_where_its_gains_fit_and_otherwise_where_its_name_says(norm, shape, dim):
    dims = ChannelDims(layers_of({"norm": norm}, weights_of({"norm": norm})))
    assert dims(Site("norm", "output"), torch.zeros(shape)) == dim


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested:UserWarning")
def test_a_nested_tensor_after_a_norm_which_has_no_sizes_is_no_error():
    norm = nn.LayerNorm(4)
    nested = torch.nested.nested_tensor([torch.zeros(3, 4), torch.zeros(2, 4)])
    dims = ChannelDims(layers_of({"norm": norm}, weights_of({"norm": norm})))
    assert dims(Site("norm", "output"), nested) == 2


def modules():
    first, last = nn.Linear(3, 3), nn.Linear(3, 3)
    last.weight = first.weight
    return {"first": first, "relu": nn.ReLU(), "last": last, "norm": nn.BatchNorm1d(3, affine=False)}


def replace_a_parameter(found):
    found["first"].bias = nn.Parameter(torch.zeros(3))


def tie_what_was_apart(found):
    found["last"].bias = found["first"].bias


def prune_a_weight(found):
    prune.l1_unstructured(found["first"], "weight", amount=1)


def parametrize_a_weight(found):
    parametrizations.weight_norm(found["last"], "bias")


def exchange_a_module(found):
    found["last"] = nn.Linear(3, 3)


CHANGES = [replace_a_parameter, tie_what_was_apart, prune_a_weight, parametrize_a_weight, exchange_a_module]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_other_weights_are_noticed(change):
    found = modules()
    weights = weights_of(found)
    assert are_unchanged(weights, found)
    change(found)
    assert not are_unchanged(weights, found)


def roles(condition):
    return {role for role, traits in ROLES.items() if condition(traits)}


def test_every_role_is_in_the_table():
    assert set(get_args(Role)) == set(ROLES)


def test_the_roles_of_each_signature_are_those_of_the_table():
    assert set(get_args(ActivationRole)) == roles(lambda r: r.kind and not r.is_gradient and not r.of_parameter)
    assert set(get_args(GradientRole)) == roles(lambda r: r.is_gradient)
    assert set(get_args(EditRole)) == set(get_args(CaptureRole)) == roles(lambda r: not r.of_parameter) - {*OF_PARTS}
