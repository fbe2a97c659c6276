"""Faults of the signal: initialization, depth, residuals."""

import torch
from benchmarks.health import nets
from benchmarks.health.plants.registry import WHOLE, WHOLE_BACKWARD, Where, plant
from benchmarks.health.training import Setup
from torch import nn


@plant("mlp vgg deep", "activation_scale vanishing_gradient")
def weights_small(s: Setup) -> Where:
    """All weights a tenth of what they should be."""
    _scale(s, s.layers, 0.1)
    return WHOLE_BACKWARD


@plant("mlp vgg deep", "activation_scale exploding_gradient")
def weights_large(s: Setup) -> Where:
    """All weights three times what they should be."""
    _scale(s, s.layers, 3.0)
    return WHOLE_BACKWARD


@plant("cnn lstm", "symmetric_units")
def weights_constant(s: Setup) -> Where:
    """Every weight has the same value, every bias is 0."""
    for parameter in s.net.parameters():
        nn.init.constant_(parameter, 0.05 if parameter.ndim > 1 else 0.0)
    return WHOLE


@plant("mlp vgg deep", "symmetric_units dead_units", by_itself=True)
def layer_zero(s: Setup) -> Where:
    """The weights and the bias of one layer are 0: no gradient gets past it, nor to it."""
    for parameter in s.layer(s.middle).parameters():
        nn.init.zeros_(parameter)
    return s.middle, s.behind(s.middle)


@plant("tanh deep", "symmetric_units", by_itself=True)
def layer_constant(s: Setup) -> Where:
    """The weights of one layer have the same value, its biases are 0: nobody wants it, whatever Adam makes of it."""
    nn.init.constant_(s.layer(s.middle).weight, 0.03)
    nn.init.zeros_(s.layer(s.middle).bias)
    return s.middle, s.behind(s.middle)


@plant("resnet vit mixer", "activation_scale exploding_gradient")
def head_large(s: Setup) -> Where:
    """The weights of the last layer are 100 times too large."""
    _scale(s, ["head"], 100.0)
    return "head"


@plant("mlp vgg deep", "activation_scale exploding_gradient")
def layer_large(s: Setup) -> Where:
    """The weights of one layer are 50 times too large."""
    _scale(s, [s.middle], 50.0)
    return s.middle, s.behind(s.middle)


@plant("cnn vgg deep", "activation_scale vanishing_gradient")
def layer_small(s: Setup) -> Where:
    """The weights of one layer are 10,000 times too small."""
    _scale(s, [s.middle], 1e-4)
    return s.middle, s.behind(s.middle)


@plant("mlp vgg", "vanishing_gradient")
def sigmoids(s: Setup) -> Where:
    """A deep net of sigmoids."""
    s.net = nets.mlp(nn.Sigmoid) if s.base == "mlp" else nets.vgg(nn.Sigmoid)
    return WHOLE_BACKWARD


@plant("tanh", "saturated")
def tanh_large(s: Setup) -> Where:
    """A stack of tanh whose weights are eight times too large."""
    _scale(s, s.layers[:-1], 8.0)
    return WHOLE, "act0"


@plant("tanh", "saturated")
def tanh_layer_large(s: Setup) -> Where:
    """One layer drives its tanh to the ends."""
    _scale(s, [s.middle], 50.0)
    return s.middle, s.behind(s.middle)


@plant("resnet postnorm", "activation_scale exploding_gradient")
def residual_large(s: Setup) -> Where:
    """The residual branches are multiplied by 5."""
    for module in s.net.modules():
        if isinstance(module, nets.Block | nets.ResidualBlock):
            module.factor = 5.0
    return WHOLE_BACKWARD


@plant("prenorm", "vanishing_gradient collapsed")
def residual_missing(s: Setup) -> Where:
    """The way around the branches was forgotten."""
    for module in s.net.modules():
        if isinstance(module, nets.Block):
            module.skips = False
    return WHOLE_BACKWARD


@plant("postnorm", "update_too_large vanishing_gradient collapsed", onset=(0, 30))
def no_warm_up(s: Setup) -> Where:
    """Norm last with a large rate from the first step on."""
    s.schedule, s.options["lr"] = None, 2e-2
    return WHOLE_BACKWARD


@plant("lstm", "exploding_gradient saturated activation_scale")
def recurrent_radius(s: Setup) -> Where:
    """The recurrent weights have a spectral radius far above 1."""
    for name, weight in s.weights():
        if "weight_hh" in name:
            nn.init.orthogonal_(weight)
            weight.data.mul_(10.0)
    return "lstm"


@plant("lstm", "activation_scale saturated")
def embedding_large(s: Setup) -> Where:
    """The embedding starts 300 times too large."""
    _scale(s, ["embedding"], 300.0)
    return "embedding", "lstm"


@plant("prenorm", "activation_scale saturated")
def attention_unscaled(s: Setup) -> Where:
    """The logits of attention are not divided, and their projections are large: each token sees one other."""
    for name in s.layers:
        if name.endswith(("q_proj", "k_proj")):
            _scale(s, [name], 5.0)
    for module in s.net.modules():
        if isinstance(module, nets.Attention):
            module.scale = 1.0
    return WHOLE, "block0.attention.q_proj", "block0.attention.k_proj"


def _scale(s: Setup, names: list[str], factor: float) -> None:
    with torch.no_grad():
        for name in names:
            for key, parameter in s.layer(name).named_parameters(recurse=False):
                if "weight" in key:
                    parameter.mul_(factor)
