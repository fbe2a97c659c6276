"""Faults that kill units, cut gradients or leave layers out."""

import torch
from benchmarks.health import nets
from benchmarks.health.plants.registry import WHOLE, Where, plant
from benchmarks.health.training import Setup, Task
from torch import Tensor, nn


@plant("mlp vgg deep", "dead_units", by_itself=True)
def bias_all(s: Setup) -> Where:
    """Every hidden layer starts with a bias of -5: nothing gets through."""
    for name in s.layers[:-1]:
        nn.init.constant_(s.layer(name).bias, -5.0)
    return WHOLE, s.behind(s.layers[0])


@plant("cnn", "dead_units")
def bias_third(s: Setup) -> Where:
    """30 % of the units of every hidden layer start dead."""
    for name in s.layers[:-1]:
        bias = s.layer(name).bias.data
        bias[: int(0.3 * len(bias))] = -20.0
    return [WHOLE, *map(s.behind, s.layers[:-1])]


@plant("cnn vgg deep", "dead_units", by_itself=True)
def bias_layer(s: Setup) -> Where:
    """One layer starts with a bias of -20: it is dead, and cuts the net."""
    nn.init.constant_(s.layer(s.middle).bias, -20.0)
    return s.middle, s.behind(s.middle)


@plant("vit", "dead_units", by_itself=True)
def bias_function(s: Setup) -> Where:
    """The feed-forward part of one block is dead; its ReLU is a function, the residual goes around it."""
    nn.init.constant_(s.layer("block2.linear1").bias, -20.0)
    return "block2.linear1"


@plant("prenorm", "dead_units", by_itself=True)
def bias_gelu(s: Setup) -> Where:
    """The feed-forward part of one block is dead: GELU of -30 is 0."""
    nn.init.constant_(s.layer("block2.fc1").bias, -30.0)
    return "block2.fc1", "block2.act"


@plant("resnet vgg deep", "dead_units", onset=60, by_itself=True)
def dies_later(s: Setup) -> Where:
    """One layer dies at step 60: something writes a large negative bias into it."""

    def kill(task: Task) -> None:
        layer = s.layer("block2.bn1" if s.base == "resnet" else s.middle)
        if s.base == "resnet":
            nn.init.zeros_(layer.weight)
        nn.init.constant_(layer.bias, -1000.0)

    s.on_step[60] = kill
    return ("block2.bn1", "block2.act1") if s.base == "resnet" else (s.middle, s.behind(s.middle))


@plant("cnn", "dead_units no_gradient", by_itself=True)
def dropout_all(s: Setup) -> Where:
    """A dropout of 1: nothing gets through while training."""
    name = s.behind(s.middle)
    s.net._modules[name] = nn.Sequential(nn.ReLU(), nn.Dropout(1.0))  # noqa: SLF001  # keeps the order of layers
    return f"{name}.1"


@plant("cnn_bn resnet", "activation_scale vanishing_gradient dead_units", onset=(0, 120))
def gain_decays(s: Setup) -> Where:
    """A decay far too strong on the gains of the norms alone: they go to 0."""
    norms = [name for name, module in s.net.named_modules() if isinstance(module, nn.BatchNorm2d)]

    def decay(step: int, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            for name in norms:
                s.layer(name).weight.mul_(0.93)
        return batch

    s.on_batch.append(decay)
    return [WHOLE, *norms]


@plant("lstm", "saturated collapsed activation_scale")
def gates_shut(s: Setup) -> Where:
    """The input and output gates of the LSTM start shut."""
    for name, bias in s.layer("lstm").named_parameters():
        if "bias_ih" in name:
            size = len(bias) // 4
            bias.data[:size] = -12.0
            bias.data[3 * size :] = -12.0
    return "lstm"


@plant("cnn", "dead_units")
def relu_on_output(s: Setup) -> Where:
    """A ReLU behind the last layer, which starts with a bias of -1: half of the classes cannot speak."""
    head = s.layer("head")
    s.net.add_module("act_head", nn.ReLU())
    nn.init.constant_(head.bias, -1.0)
    return "head", "act_head"


@plant("resnet vgg", "no_gradient", by_itself=True)
def detached(s: Setup) -> Where:
    """`detach()` in the middle of `forward`: what runs before it never learns."""
    assert isinstance(s.net, nets.Chain)
    names = [name for name, _ in s.net.named_children()]
    cut = "block1" if s.base == "resnet" else s.behind(s.middle)
    s.net.cut_behind = cut
    inside = [name for name, _ in s.layer(cut).named_modules(prefix=cut)]
    trained = [name for name in s.layers if name.split(".")[0] in names[: names.index(cut) + 1]]
    # The gradient is lost at the cut; the layers before it are what never learns.
    return [*inside, trained[-1], trained[0]]


@plant("prenorm vit mixer", "no_gradient", by_itself=True)
def under_no_grad(s: Setup) -> Where:
    """A block runs under `no_grad`, together with all that stands before it."""
    assert isinstance(s.net, nets.Chain)
    s.net.cut_behind = "block1"
    inside = [name for name, module in s.layer("block1").named_modules(prefix="block1") if not list(module.children())]
    return [*inside, s.layers[0]]


@plant("resnet", "no_gradient", by_itself=True)
def block_forgotten(s: Setup) -> Where:
    """A trainable block that `forward` does not call."""
    block = nets.ResidualBlock(8, 8)
    s.layer("block1").add_module("extra", block)
    leaves = [name for name, module in block.named_modules() if not list(module.children())]
    return [f"block1.extra.{name}" for name in leaves]


@plant("mlp cnn", "no_gradient", by_itself=True)
def gradient_zeroed(s: Setup) -> Where:
    """A hook left from an experiment makes the gradient of one layer's weights 0."""
    for parameter in s.layer(s.middle).parameters():
        parameter.register_hook(torch.zeros_like)
    return s.middle


@plant("vit mixer", "collapsed", by_itself=True)
def mean_over_batch(s: Setup) -> Where:
    """The mean is taken over the batch instead of the tokens: every sample is answered alike."""
    s.layer("mean").over = 0
    return "mean", "head"


@plant("cnn_bn", "collapsed", by_itself=True)
def batch_mixed(s: Setup) -> Where:
    """A layer gives every sample the mean of the batch."""
    name = "pool"
    s.net._modules[name] = nn.Sequential(s.layer(name), _OfBatch())  # noqa: SLF001  # keeps the order of layers
    return f"{name}.1", "flatten", "head"


@plant("prenorm", "", by_itself=True)
def mask_forgotten(s: Setup) -> Where:
    """The causal mask is left out. An expected miss: the loss falls all the better."""
    for module in s.net.modules():
        if isinstance(module, nets.Attention):
            module.is_causal = False
    return WHOLE


class _OfBatch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(0, keepdim=True).expand_as(x)
