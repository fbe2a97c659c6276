"""What several programs are made of."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn


def mlp(*sizes: int) -> nn.Sequential:
    """Linear layers with ReLUs between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Reader(nn.Module):
    """A small transformer over tokens, which looks only back unless told otherwise.

    Args:
        vocabulary: how many tokens there are.
        longest: how many positions there are.
        causal: no token sees those after it.
        width: of the layers.
        depth: how many layers.
    """

    def __init__(self, vocabulary: int, longest: int, causal: bool = True, width: int = 32, depth: int = 1) -> None:
        super().__init__()
        self.causal = causal
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(longest, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor, places: Tensor | None = None) -> Any:
        length = tokens.shape[1]
        seen = self.tokens(tokens) + self.places(torch.arange(length) if places is None else places)
        mask = nn.Transformer.generate_square_subsequent_mask(length) if self.causal else None
        for layer in self.layers:
            seen = layer(seen, src_mask=mask)
        return self.head(self.norm(seen))


def closeness(drawn: Tensor, real: Tensor) -> float:
    """How alike two samples are, by their energy distance: 1 if the same, 0 or less if far apart."""
    across = 2 * torch.cdist(drawn, real).mean()
    within = torch.cdist(real, real).mean()
    return (1 - (across - torch.cdist(drawn, drawn).mean() - within) / within).item()


def accuracy(scores: Tensor, targets: Tensor) -> float:
    return (scores.argmax(-1) == targets).double().mean().item()


def r2(outputs: Tensor, targets: Tensor) -> float:
    """The share of variance explained."""
    return 1 - ((outputs - targets).square().mean() / targets.var(0, correction=0).mean()).item()
