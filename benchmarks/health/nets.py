"""The architectures. Each is small, named layer by layer, and written as a practitioner would write it."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from benchmarks.health.data import CONTEXT, VOCABULARY
from torch import Tensor, nn


class Chain(nn.Sequential):
    """A Sequential that can cut the graph behind one of its layers, as a stray `detach()` in `forward` does."""

    cut_behind: str | None = None

    def forward(self, x: Tensor) -> Tensor:
        for name, module in self.named_children():
            x = module(x)
            if name == self.cut_behind:
                x = x.detach()
        return x


def chain(pairs: Iterator[tuple[str, nn.Module]]) -> Chain:
    return Chain(OrderedDict(pairs))


def mlp(act: Callable[[], nn.Module] = nn.ReLU, width: int = 64, depth: int = 6) -> Chain:
    """Layers fc0, act0, fc1, ... and head."""

    def layers() -> Iterator[tuple[str, nn.Module]]:
        yield "flatten", nn.Flatten()
        for i in range(depth):
            yield f"fc{i}", nn.Linear(64 if i == 0 else width, width)
            yield f"act{i}", act()
        yield "head", nn.Linear(width, 10)

    return chain(layers())


def cnn(norm: bool = False, channels: tuple[int, ...] = (16, 16, 32, 32)) -> Chain:
    """Layers conv0, (bn0,) act0, ..., the image halved behind the second, pool and head."""

    def layers() -> Iterator[tuple[str, nn.Module]]:
        before = 1
        for i, after in enumerate(channels):
            yield f"conv{i}", nn.Conv2d(before, after, 3, padding=1, bias=not norm)
            if norm:
                yield f"bn{i}", nn.BatchNorm2d(after)
            yield f"act{i}", nn.ReLU()
            if i == 1:
                yield "halve", nn.MaxPool2d(2)
            before = after
        yield "pool", nn.AdaptiveAvgPool2d(2)
        yield "flatten", nn.Flatten()
        yield "head", nn.Linear(4 * before, 10)

    return chain(layers())


def vgg(act: Callable[[], nn.Module] = nn.ReLU) -> Chain:
    """Twelve layers, without norm: eleven convolutions with He's initialization, and the head."""

    def layers() -> Iterator[tuple[str, nn.Module]]:
        before = 1
        for i in range(11):
            after = 16 if i < 5 else 32
            conv = nn.Conv2d(before, after, 3, padding=1)
            nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
            nn.init.zeros_(next(p for p in conv.parameters() if p.ndim == 1))
            yield f"conv{i}", conv
            yield f"act{i}", act()
            if i in (4, 8):
                yield f"halve{i}", nn.MaxPool2d(2)
            before = after
        yield "flatten", nn.Flatten()
        yield "head", nn.Linear(4 * before, 10)

    return chain(layers())


class ResidualBlock(nn.Module):
    """Two convolutions and a way around them; where the channels change, the image is halved."""

    skips = True
    factor = 1.0

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        stride = 1 if before == after else 2
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.act1 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.act2 = nn.ReLU(inplace=True)
        self.shortcut = nn.Identity() if before == after else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        residual = self.bn2(self.conv2(self.act1(self.bn1(self.conv1(x))))) * self.factor
        return self.act2(residual + self.shortcut(x) if self.skips else residual)  # type: ignore[no-any-return]  # untyped call


def resnet(channels: tuple[int, ...] = (8, 8, 8, 16, 16)) -> Chain:
    """Layers stem, bn, act, block0 ..., pool and head."""

    def layers() -> Iterator[tuple[str, nn.Module]]:
        yield "stem", nn.Conv2d(1, channels[0], 3, padding=1, bias=False)
        yield "bn", nn.BatchNorm2d(channels[0])
        yield "act", nn.ReLU(inplace=True)
        for i, (before, after) in enumerate(pairwise(channels)):
            yield f"block{i}", ResidualBlock(before, after)
        yield "pool", nn.AdaptiveAvgPool2d(1)
        yield "flatten", nn.Flatten()
        yield "head", nn.Linear(channels[-1], 10)

    return chain(layers())


class Attention(nn.Module):
    """Causal attention. What faults change is an attribute: the scale, the mask."""

    is_causal = True

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.scale = (width // heads) ** -0.5
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        projected = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        query, key, value = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in projected)
        logits = query @ key.transpose(-1, -2) * self.scale
        if self.is_causal:
            ahead = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            logits = logits.masked_fill(ahead, float("-inf"))
        heads = logits.softmax(-1) @ value
        return self.out_proj(heads.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]  # untyped call


class Block(nn.Module):
    """Attention, then a multilayer perceptron, each with a way around it."""

    skips = True
    factor = 1.0

    def __init__(self, width: int, heads: int, norm_first: bool) -> None:
        super().__init__()
        self.norm_first = norm_first
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self._around(x, self.attention, self.norm1)
        return self._around(x, lambda y: self.fc2(self.act(self.fc1(y))), self.norm2)

    def _around(self, x: Tensor, branch: Callable[[Tensor], Tensor], norm: nn.Module) -> Tensor:
        way = x if self.skips else torch.zeros_like(x)
        if self.norm_first:
            return way + branch(norm(x)) * self.factor
        return norm(way + branch(x) * self.factor)  # type: ignore[no-any-return]  # a module's call is untyped


class Embedding(nn.Module):
    """Tokens and places."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.place = nn.Embedding(CONTEXT, width)
        nn.init.normal_(self.token.weight, std=0.1)
        nn.init.normal_(self.place.weight, std=0.1)

    def forward(self, characters: Tensor) -> Tensor:
        return self.token(characters) + self.place(torch.arange(characters.shape[1]))  # type: ignore[no-any-return]  # untyped call


def transformer(blocks: int, norm_first: bool, width: int = 32, heads: int = 4) -> Chain:
    """A character transformer: embedding, block0 ..., (norm,) head."""

    def layers() -> Iterator[tuple[str, nn.Module]]:
        yield "embedding", Embedding(width)
        for i in range(blocks):
            yield f"block{i}", Block(width, heads, norm_first)
        if norm_first:
            yield "norm", nn.LayerNorm(width)
        yield "head", nn.Linear(width, VOCABULARY)

    return chain(layers())


class Patches(nn.Module):
    """Cuts an image of 8x8 into 16 patches of 2x2, embeds them and adds their places."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project = nn.Conv2d(1, width, 2, 2)
        self.place = nn.Parameter(torch.randn(16, width) * 0.02)

    def forward(self, images: Tensor) -> Tensor:
        return self.project(images).flatten(2).transpose(1, 2) + self.place  # type: ignore[no-any-return]  # untyped call


class Mean(nn.Module):
    """The mean over tokens; `over=0` is the fault of taking it over the batch."""

    over = 1

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(self.over, keepdim=self.over == 0).expand_as(x).mean(1) if self.over == 0 else x.mean(1)


def vit(blocks: int = 4, width: int = 32) -> Chain:
    """Torch's own encoder layers, whose activation is a function, over patches."""

    def layers() -> Iterator[tuple[str, nn.Module]]:
        yield "patches", Patches(width)
        for i in range(blocks):
            block = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True, norm_first=True)
            yield f"block{i}", block
        yield "norm", nn.LayerNorm(width)
        yield "mean", Mean()
        yield "head", nn.Linear(width, 10)

    return chain(layers())


class MixerBlock(nn.Module):
    """Two multilayer perceptrons with a way around each: one mixes tokens, the other one channels."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.tokens1 = nn.Linear(tokens, 2 * tokens)
        self.act1 = nn.GELU()
        self.tokens2 = nn.Linear(2 * tokens, tokens)
        self.norm2 = nn.LayerNorm(width)
        self.channels1 = nn.Linear(width, 2 * width)
        self.act2 = nn.GELU()
        self.channels2 = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.tokens2(self.act1(self.tokens1(self.norm1(x).transpose(1, 2))))
        x = x + mixed.transpose(1, 2)
        return x + self.channels2(self.act2(self.channels1(self.norm2(x))))  # type: ignore[no-any-return]  # untyped call


def mixer(blocks: int = 4, width: int = 32) -> Chain:
    """Patches, block0 ..., norm, mean and head."""

    def layers() -> Iterator[tuple[str, nn.Module]]:
        yield "patches", Patches(width)
        for i in range(blocks):
            yield f"block{i}", MixerBlock(16, width)
        yield "norm", nn.LayerNorm(width)
        yield "mean", Mean()
        yield "head", nn.Linear(width, 10)

    return chain(layers())


def deep() -> Chain:
    """Twelve linear layers without norm, with He's initialization, and the head."""
    net = mlp(width=48, depth=12)
    for name, parameter in net.named_parameters():
        if parameter.ndim > 1:
            nn.init.kaiming_normal_(parameter, nonlinearity="linear" if name.startswith("head") else "relu")
        else:
            nn.init.zeros_(parameter)
    return net


class Recurrent(nn.Module):
    """An LSTM over characters."""

    def __init__(self, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 32)
        self.lstm = nn.LSTM(32, width, layers, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, characters: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(characters))[0])  # type: ignore[no-any-return]  # untyped call
