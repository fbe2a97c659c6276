"""What gpu.py trains: a ResNet-50, a transformer of GPT-2's size, and tiny ones of their kind."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torchvision.models import ResNet
from torchvision.models.resnet import BasicBlock, Bottleneck


class Trained(LightningModule):
    """Trains any network on batches of inputs and targets.

    Args:
        net: the network.
        loss: of its output and the targets.
        optimizer: made from its parameters.
    """

    def __init__(
        self,
        net: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        optimizer: Callable[..., torch.optim.Optimizer],
    ) -> None:
        super().__init__()
        self.net = net
        self.loss = loss
        self.optimizer = optimizer

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, targets = batch
        return self.loss(self.net(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.optimizer(self.parameters())


class Task(NamedTuple):
    """A training.

    Args:
        name: of the network, and the size of the batch.
        make: the network with its loss and optimizer.
        batch: what it trains on, on the device.
    """

    name: str
    make: Callable[[], Trained]
    batch: tuple[Tensor, Tensor]


def pictures(device: torch.device, is_tiny: bool) -> Task:
    size, side = (2, 32) if is_tiny else (64, 224)
    block, layers = (BasicBlock, [1, 1, 1, 1]) if is_tiny else (Bottleneck, [3, 4, 6, 3])

    def make() -> Trained:
        net = ResNet(block, layers).to(memory_format=torch.channels_last)  # as on a GPU one should
        return Trained(net, nn.functional.cross_entropy, lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9))

    images = torch.randn(size, 3, side, side, device=device).to(memory_format=torch.channels_last)
    name = f"{'tiny ResNet' if is_tiny else 'ResNet-50'}, {size} x 3 x {side} x {side}"
    return Task(name, make, (images, torch.randint(1000, (size,), device=device)))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.gelu, self.down = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(self.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """A GPT-2."""

    def __init__(self, vocabulary: int, length: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.places(places))))


def next_token(logits: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def text(device: torch.device, is_tiny: bool) -> Task:
    size, length = (2, 8) if is_tiny else (8, 1024)
    vocabulary, width, heads, layers = (50, 16, 2, 2) if is_tiny else (50257, 768, 12, 12)

    def make() -> Trained:
        net = Transformer(vocabulary, length, width, heads, layers)
        return Trained(net, next_token, lambda p: torch.optim.AdamW(p, lr=1e-4))

    tokens = torch.randint(vocabulary, (size, length + 1), device=device)
    name = f"{'tiny transformer' if is_tiny else 'GPT-2 (124 M parameters)'}, {size} x {length} tokens"
    return Task(name, make, (tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()))
