"""What programs of several files are made of."""

from functools import cache
from itertools import pairwise
from typing import Any

import torch
from benchmarks.programs.parts import accuracy, digits
from benchmarks.programs.program import Learner
from torch import Tensor, nn

Pair = tuple[Tensor, Tensor]


def track(model: nn.Module, target: nn.Module, share: float) -> None:
    """Move a target network by a share of the way."""
    with torch.no_grad():
        for mine, its in zip(model.parameters(), target.parameters(), strict=True):
            its.lerp_(mine, share)


def mlp(*sizes: int) -> nn.Sequential:
    """Linear layers with ReLUs between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def closeness(drawn: Tensor, real: Tensor) -> float:
    """How alike two samples are, by their energy distance: 1 if the same, 0 or less if far apart."""
    across = 2 * torch.cdist(drawn, real).mean()
    within = torch.cdist(real, real).mean()
    return (1 - (across - torch.cdist(drawn, drawn).mean() - within) / within).item()


class Reader(nn.Module):
    """A small transformer over tokens, which looks only back."""

    def __init__(self, vocabulary: int, longest: int, width: int = 32, depth: int = 1) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(longest, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Any:
        length = tokens.shape[1]
        seen = self.tokens(tokens) + self.places(torch.arange(length))
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        for layer in self.layers:
            seen = layer(seen, src_mask=mask)
        return self.head(self.norm(seen))


@cache
def flat_digits() -> Pair:
    images, labels = digits(8)
    return images.flatten(1) / 255, labels


def some_digits(count: int) -> Pair:
    images, labels = flat_digits()
    chosen = torch.randint(len(images), (count,))
    return images[chosen], labels[chosen]


class Classes(Learner):
    """A network of two layers that tells digits."""

    def __init__(self) -> None:
        super().__init__()
        self.net: nn.Module = mlp(64, 64, 10)

    def batch(self) -> Pair:
        return some_digits(64)

    def score(self) -> float:
        images, labels = flat_digits()
        return accuracy(self.net(images), labels)
