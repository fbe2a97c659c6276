"""Kinds of layers, known by torch's classes or, of others, by their names and parts."""

import pytest
import torch
from torch import Tensor, nn

from hookboard.model.layers import ChannelDims, kind_of, layers_of
from hookboard.model.sites import Site
from hookboard.model.state import weights_of


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
