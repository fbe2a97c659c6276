"""Faults of numbers: NaN, Inf, half precision, attention that cannot be computed."""

import math

import torch
from benchmarks.health.plants.registry import WHOLE, WHOLE_BACKWARD, Where, plant
from benchmarks.health.training import Batch, Setup, Task
from torch import Tensor, nn


class Distances(nn.Module):
    """Adds the mean distance between samples: a root that is 0 for a sample and itself, where its gradient is NaN."""

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        distances = (flat[:, None] - flat[None]).square().sum(-1).sqrt()
        return x + 0.01 * distances.mean()


class Unit(nn.Module):
    """Divides by the norm without an epsilon: a sample of zeros gives NaN, which begins at one step."""

    begins = False

    def forward(self, x: Tensor) -> Tensor:
        if self.begins:
            x = torch.cat([torch.zeros_like(x[:1]), x[1:]])
        dimensions = tuple(range(1, x.ndim))
        norm = x.square().sum(dimensions, keepdim=True).sqrt()
        return x / norm * math.sqrt(x[0].numel())


class Logarithm(nn.Module):
    """The logarithm of a softmax, one after the other: the log of 0 is -Inf."""

    def forward(self, logits: Tensor) -> Tensor:
        return (logits * 100).softmax(-1).log()


class Half(nn.Module):
    """Runs a layer in fp16, as a hand-written kernel would."""

    def __init__(self, layer: nn.Module, factor: float) -> None:
        super().__init__()
        self.layer, self.factor = layer, factor

    def forward(self, x: Tensor) -> Tensor:
        half: Tensor = (self.layer(x) * self.factor).half()
        return half.float() / self.factor


@plant("mlp resnet", "nonfinite", by_itself=True)
def root_at_zero(s: Setup) -> Where:
    """A square root whose gradient at 0 is infinite: the backward pass gives NaN."""
    name = "act" if s.base == "resnet" else s.behind(s.middle)
    s.net._modules[name] = nn.Sequential(s.layer(name), Distances())  # noqa: SLF001  # keeps the order of layers
    return f"{name}.1"


@plant("tanh vgg", "nonfinite", onset=70, by_itself=True)
def divided_by_zero(s: Setup) -> Where:
    """A norm without an epsilon meets a sample of zeros at step 70."""
    name = s.behind(s.middle)
    unit = Unit()
    s.net._modules[name] = nn.Sequential(s.layer(name), unit)  # noqa: SLF001  # keeps the order of layers
    s.on_step[70] = lambda task: setattr(unit, "begins", True)
    return f"{name}.1"


@plant("cnn lstm", "nonfinite", by_itself=True)
def log_of_zero(s: Setup) -> Where:
    """The loss takes the logarithm of a softmax that has become 0."""
    if s.base == "lstm":
        s.loss = lambda logits, targets: nn.functional.nll_loss(
            (logits * 1000).softmax(-1).log().flatten(0, 1), targets.flatten()
        )
        return WHOLE_BACKWARD
    s.net.add_module("log", Logarithm())
    return "log"


@plant("resnet vit mixer", "nonfinite input_scale", onset=60, by_itself=True)
def inf_in_batch(s: Setup) -> Where:
    """One pixel of the batch of step 60 is Inf."""
    s.on_batch.append(lambda step, batch: _with(batch, float("inf")) if step == 60 else batch)
    return WHOLE, *s.entrance


@plant("cnn_bn vgg", "nonfinite input_scale", onset=60, by_itself=True)
def nan_in_batch(s: Setup) -> Where:
    """One pixel of the batch of step 60 is NaN."""
    s.on_batch.append(lambda step, batch: _with(batch, float("nan")) if step == 60 else batch)
    return WHOLE, *s.entrance


@plant("prenorm lstm", "nonfinite", onset=80, by_itself=True)
def weight_inf(s: Setup) -> Where:
    """A weight becomes Inf at step 80."""
    name = "head" if s.base == "lstm" else "block1.fc1"

    def spoil(task: Task) -> None:
        s.layer(name).weight.data[0, 0] = float("inf")

    s.on_step[80] = spoil
    return name


@plant("prenorm", "nonfinite", onset=50, by_itself=True)
def all_masked(s: Setup) -> Where:
    """From step 50 on one row of attention has every token masked: its softmax is NaN."""
    attention = s.layer("block1.attention")

    def mask(task: Task) -> None:
        attention.scale = float("inf")

    s.on_step[50] = mask
    return "block1.attention", "block1.attention.v_proj", "block1.attention.out_proj", "block1.attention.k_proj"


@plant("cnn", "nonfinite precision", by_itself=True)
def half_overflows(s: Setup) -> Where:
    """One layer runs in fp16 at a scale that overflows."""
    s.net._modules[s.middle] = Half(s.layer(s.middle), 1e6)  # noqa: SLF001  # keeps the order of layers
    return s.middle, f"{s.middle}.layer", s.behind(s.middle)


@plant("cnn", "precision no_gradient not_updated update_too_small")
def half_underflows(s: Setup) -> Where:
    """The whole model is fp16, and the loss is so small that gradients underflow."""
    s.trainer["precision"] = "16-true"
    s.loss = lambda logits, targets: nn.functional.cross_entropy(logits, targets) * 1e-5
    s.optimizer, s.options = torch.optim.SGD, {"lr": s.options["lr"] * 1e4}
    return WHOLE_BACKWARD


@plant("mlp vit mixer", "precision not_updated update_too_small")
def updates_lost(s: Setup) -> Where:
    """The weights are bf16, and steps are smaller than what it resolves."""
    s.trainer["precision"] = "bf16-true"
    s.options["lr"] *= 0.02
    return WHOLE


@plant("cnn_bn", "activation_scale exploding_gradient")
def epsilon_tiny(s: Setup) -> Where:
    """The norm's epsilon is 1e-12, and one of its channels is all but constant."""
    conv, norm = s.layer("conv1"), s.layer("bn1")
    norm.eps = 1e-12
    conv.weight.data[:4] *= 1e-6
    return "bn1", "conv1"


def _with(batch: Batch, value: float) -> Batch:
    inputs = batch[0].clone()
    inputs.view(-1)[100] = value
    return inputs, batch[1]
