"""The healthy trainings that faults are planted in: thirteen architectures, each as a practitioner would train it."""

from collections.abc import Callable

import torch
from benchmarks.health import nets
from benchmarks.health.data import digits, text
from benchmarks.health.training import Setup
from torch import nn


def mlp() -> Setup:
    return _digits("mlp", nets.mlp(), lr=3e-3)


def tanh() -> Setup:
    return _digits("tanh", nets.mlp(nn.Tanh), lr=1e-3)


def cnn() -> Setup:
    return _with_momentum(_digits("cnn", nets.cnn(), lr=0.05))


def cnn_bn() -> Setup:
    return _digits("cnn_bn", nets.cnn(norm=True), lr=2e-3)


def vgg() -> Setup:
    return _digits("vgg", nets.vgg(), lr=1e-3, steps=160)


def resnet() -> Setup:
    return _with_momentum(_digits("resnet", nets.resnet(), lr=0.05, steps=150))


def vit() -> Setup:
    return _digits("vit", nets.vit(), lr=4e-3, steps=160)


def prenorm() -> Setup:
    return _text("prenorm", nets.transformer(4, norm_first=True), lr=3e-3, steps=150)


def postnorm() -> Setup:
    setup = _text("postnorm", nets.transformer(6, norm_first=False), lr=2e-3, steps=150)
    setup.schedule = warm_up
    return setup


def lstm() -> Setup:
    setup = _text("lstm", nets.Recurrent(), lr=5e-3, steps=160)
    setup.trainer["gradient_clip_val"] = 1.0
    return setup


def mixer() -> Setup:
    return _digits("mixer", nets.mixer(), lr=4e-3, steps=160)


def deep() -> Setup:
    return _digits("deep", nets.deep(), lr=1e-3, steps=160)


def narrow() -> Setup:
    return _with_momentum(_digits("narrow", nets.resnet((4, 4, 4, 8)), lr=0.05, steps=200))


BASES: dict[str, Callable[[], Setup]] = {
    base.__name__: base
    for base in (
        mlp,
        tanh,
        cnn,
        cnn_bn,
        vgg,
        resnet,
        prenorm,
        postnorm,
        vit,
        lstm,
        mixer,
        deep,
        narrow,
    )
}
"""Every base by name. The order is part of the rule that makes halves, see `halves.py`."""


def warm_up(step: int) -> float:
    """The share of the learning rate: from 1/40 up to 1 within 40 steps."""
    return min(1.0, (step + 1) / 40)


def _digits(name: str, net: nn.Module, lr: float, steps: int = 200) -> Setup:
    return Setup(name, net, digits(), _layers(net), options={"lr": lr, "weight_decay": 0.01}, steps=steps)


def _text(name: str, net: nn.Module, lr: float, steps: int) -> Setup:
    options = {"lr": lr, "weight_decay": 0.01}
    return Setup(name, net, text(), _layers(net), options=options, batch_size=16, steps=steps)


def _with_momentum(setup: Setup) -> Setup:
    setup.optimizer = torch.optim.SGD
    setup.options = {"lr": setup.options["lr"], "momentum": 0.9, "weight_decay": 1e-4}
    return setup


def _layers(net: nn.Module) -> list[str]:
    """Leaf modules with a weight of two or more dimensions, in the order of definition, which is that of execution."""
    return [
        name
        for name, module in net.named_modules()
        if not list(module.children()) and any(p.ndim > 1 for p in module.parameters(recurse=False))
    ]
