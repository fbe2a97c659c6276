"""What the ported programs are made of: layers and optimizers as Keras sets them up, scores, and data that ships.

The optimizers' `decay=1e-6` is left out everywhere: it lowers the rate by at most 1 % in 10,000 steps.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any

import torch
from sklearn.datasets import load_digits, load_iris  # type: ignore[import-untyped]  # has no stubs
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # the usual name
from torch.optim import SGD, Adam, Optimizer, RMSprop

OptimizerOf = Callable[[Iterable[nn.Parameter]], Optimizer]
Loss = Callable[[Tensor, Tensor], Tensor]

INITIALIZERS: dict[str, Callable[[Tensor], Any]] = {
    "glorot": nn.init.xavier_uniform_,
    "he": partial(nn.init.kaiming_uniform_, nonlinearity="relu"),
    "lecun": partial(nn.init.kaiming_uniform_, nonlinearity="linear"),
    "uniform": partial(nn.init.uniform_, a=-0.05, b=0.05),
    "normal": partial(nn.init.normal_, std=0.05),
    "standard_normal": nn.init.normal_,
}
"""Keras's initializers of weights, by their names there; `glorot` is its default."""


class Exponential(nn.Module):
    """Keras's activation of this name."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.exp()


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "exponential": Exponential,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "softmax": partial(nn.Softmax, dim=-1),
}


def initialized(layer: Any, init: str = "glorot", bias: float = 0.0) -> nn.Module:
    """A Linear or Conv2d with Keras's initial weights, and the same value for each bias."""
    INITIALIZERS[init](layer.weight)
    nn.init.constant_(layer.bias, bias)
    return layer  # type: ignore[no-any-return]  # a module gives Any


def stack(inputs: int, *parts: int | float | str, init: str | Sequence[str] = "glorot") -> nn.Sequential:
    """A chain of Linear layers (a number of units), activations (a name) and dropouts (a share).

    >>> stack(4, 8, "relu", 0.5, 1)
    Sequential(
      (0): Linear(in_features=4, out_features=8, bias=True)
      (1): ReLU()
      (2): Dropout(p=0.5, inplace=False)
      (3): Linear(in_features=8, out_features=1, bias=True)
    )
    """
    initializers = iter([init] * len(parts) if isinstance(init, str) else init)
    layers: list[nn.Module] = []
    for part in parts:
        if isinstance(part, int):
            layers.append(initialized(nn.Linear(inputs, part), next(initializers)))
            inputs = part
        else:
            layers.append(nn.Dropout(part) if isinstance(part, float) else ACTIVATIONS[part]())
    return nn.Sequential(*layers)


def conv(inputs: int, outputs: int, size: int, *, padding: int = 0, init: str = "glorot", bias: float = 0) -> Any:
    return initialized(nn.Conv2d(inputs, outputs, size, padding=padding), init, bias)


def sgd(lr: float = 0.01, momentum: float = 0.0, nesterov: bool = False) -> OptimizerOf:
    return partial(SGD, lr=lr, momentum=momentum, nesterov=nesterov)


def adam(lr: float = 0.001) -> OptimizerOf:
    return partial(Adam, lr=lr, eps=1e-7)


def rmsprop(lr: float = 0.001) -> OptimizerOf:
    return partial(RMSprop, lr=lr, alpha=0.9, eps=1e-7)


def clipped_binary_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Keras's binary cross entropy, which takes outputs beyond 0 and 1 to the nearest probability; torch's refuses."""
    return F.binary_cross_entropy(outputs.clamp(1e-7, 1 - 1e-7), targets)


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """The share of right classes, of outputs of shape (samples, classes)."""
    return (outputs.argmax(-1) == targets).double().mean().item()


def bit_accuracy(outputs: Tensor, targets: Tensor) -> float:
    """The share of outputs on the same side of one half as their target."""
    return ((outputs > 0.5) == (targets > 0.5)).double().mean().item()


def r2(outputs: Tensor, targets: Tensor) -> float:
    """The share of variance explained: 1 is perfect, the best constant has 0."""
    outputs, targets = outputs.double(), targets.double()
    return 1 - ((outputs - targets).square().mean() / targets.var(0, correction=0).mean()).item()


def tensors(inputs: object, targets: object) -> tuple[Tensor, Tensor]:
    return torch.tensor(inputs, dtype=torch.float32), torch.tensor(targets)


def standardized(values: Tensor) -> Tensor:
    """Scikit-learn's StandardScaler: each column has mean 0 and standard deviation 1; a constant one becomes 0."""
    spread = values.double().std(0, correction=0)
    return ((values - values.double().mean(0)) / spread.where(spread > 0, 1.0)).float()


@cache
def digits(size: int) -> tuple[Tensor, Tensor]:
    """Scikit-learn's 1797 digits as images of 1 x size x size from 0 to 255, and their labels: in place of MNIST."""
    loaded = load_digits()
    images = torch.tensor(loaded.images, dtype=torch.float32).unsqueeze(1) * (255 / 16)
    return F.interpolate(images, size=(size, size), mode="bilinear"), torch.tensor(loaded.target)


@cache
def iris() -> tuple[Tensor, Tensor]:
    loaded = load_iris()
    return torch.tensor(loaded.data, dtype=torch.float32), torch.tensor(loaded.target)
