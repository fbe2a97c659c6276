"""What several programs of language models are made of."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # the usual name
from torch.optim import Adam

Turn = Callable[[Tensor], Tensor]
"""Turns queries and keys of shape (texts, heads, length, size) by their positions."""


class Attention(nn.Module):
    """Attention of several heads, which looks only back unless it is given a mask."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, inputs: Tensor, mask: Tensor | None = None, turn: Turn | None = None) -> Any:
        texts, length, width = inputs.shape
        query, key, value = (
            layer(inputs).view(texts, length, self.heads, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        if turn is not None:
            query, key = turn(query), turn(key)
        found = F.scaled_dot_product_attention(query, key, value, mask, is_causal=mask is None)
        return self.out(found.transpose(1, 2).reshape(texts, length, width))


class Block(nn.Module):
    """A layer of a transformer, with its norms first."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, inputs: Tensor, mask: Tensor | None = None, turn: Turn | None = None) -> Any:
        inputs = inputs + self.attention(self.before_attention(inputs), mask, turn)
        return inputs + self.mlp(self.before_mlp(inputs))


class Decoder(nn.Module):
    """A small language model as GPT-2 is.

    Args:
        vocabulary: how many tokens there are.
        longest: how many positions there are; 0 for none, where queries and keys are turned.
        width: of the layers.
        depth: how many layers.
        outputs: how many numbers it gives for each token; None for as many as there are tokens.
        heads: of its attention.
    """

    def __init__(
        self,
        vocabulary: int,
        longest: int,
        width: int = 32,
        depth: int = 1,
        outputs: int | None = None,
        heads: int = 4,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(longest, width) if longest else None
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary if outputs is None else outputs, bias=False)

    def forward(
        self, tokens: Tensor, places: Tensor | None = None, mask: Tensor | None = None, turn: Turn | None = None
    ) -> Any:
        states = self.tokens(tokens)
        if self.places is not None:
            states = states + self.places(torch.arange(tokens.shape[1]) if places is None else places)
        for block in self.blocks:
            states = block(states, mask, turn)
        return self.head(self.norm(states))


def next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """The cross entropy of each token but the first, given those before it."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def taught(net: nn.Module, loss: Callable[[], Tensor], steps: int, rate: float = 0.003) -> None:
    """Train a model that is then the pretrained one."""
    optimizer = Adam([value for value in net.parameters() if value.requires_grad], rate)
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()


@torch.no_grad()
def written(logits_of: Callable[[Tensor], Tensor], prompts: Tensor, length: int, greedy: bool = True) -> Tensor:
    """Prompts with tokens that the model has written after them."""
    for _ in range(length):
        logits = logits_of(prompts)[:, -1]
        found = logits.argmax(1, keepdim=True) if greedy else torch.multinomial(logits.softmax(1), 1)
        prompts = torch.cat([prompts, found], 1)
    return prompts


def log_likely(logits: Tensor, tokens: Tensor) -> Tensor:
    """The log-probability of each token but the first."""
    return logits[:, :-1].log_softmax(2).gather(2, tokens[:, 1:].unsqueeze(2)).squeeze(2)


class LowRank(nn.Module):
    """A linear layer that is frozen, with an adapter beside it that starts as nothing."""

    def __init__(self, layer: nn.Linear, rank: int = 4, scale: float = 2.0) -> None:
        super().__init__()
        self.layer, self.scale = layer.requires_grad_(False), scale
        self.lora_a = nn.Parameter(torch.randn(rank, layer.in_features) / layer.in_features**0.5)
        self.lora_b = nn.Parameter(torch.zeros(layer.out_features, rank))
        self.enabled = True

    def forward(self, inputs: Tensor) -> Any:
        outputs = self.layer(inputs)
        return outputs + self.scale * F.linear(F.linear(inputs, self.lora_a), self.lora_b) if self.enabled else outputs


def adapted(net: Decoder, wrap: Callable[[nn.Linear], nn.Module] = LowRank) -> list[Any]:
    """Freeze a model and put adapters on the linear layers of its blocks; give them."""
    net.requires_grad_(False)
    made = []
    for name, layer in [*net.blocks.named_modules()]:
        if isinstance(layer, nn.Linear):
            made.append(wrap(layer))
            parent, _, last = name.rpartition(".")
            setattr(net.blocks.get_submodule(parent), last, made[-1])
    return made
