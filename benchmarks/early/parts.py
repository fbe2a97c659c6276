"""What several programs of both kinds are made of: batches, experts with a router, half precision."""

import math
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.health.data import digits, text
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # the usual name

Batch = tuple[Tensor, Tensor]


def images(size: int = 32) -> Callable[[int], Batch]:
    """Draw digits of shape 1x8x8 and their labels."""
    data = digits()

    def draw(step: int) -> Batch:
        rows = torch.randint(len(data.inputs), (size,))
        return data.inputs[rows], data.targets[rows]

    return draw


def characters(size: int = 16) -> Callable[[int], Batch]:
    """Draw windows of text, and the same moved by one."""
    data = text()

    def draw(step: int) -> Batch:
        rows = torch.randint(len(data.inputs), (size,))
        return data.inputs[rows], data.targets[rows]

    return draw


def repeats(length: int = 12, size: int = 32, wrong: float = 0.0) -> Callable[[int], Batch]:
    """Draw sequences of random tokens that are repeated once, a share of them wrong, and the same moved by one."""

    def draw(step: int) -> Batch:
        tokens = torch.randint(16, (size, length)).repeat(1, 2)
        tokens[:, length:] += (torch.rand(size, length) < wrong) * torch.randint(1, 16, (size, length))
        tokens %= 16
        return tokens[:, :-1], tokens[:, 1:]

    return draw


def copied(net: Any, batch: Any) -> Tensor:
    """Cross entropy where the sequence is known: in its second half."""
    half = (batch[0].shape[1] + 1) // 2
    return F.cross_entropy(net(batch[0])[:, half - 1 :].flatten(0, -2), batch[1][:, half - 1 :].flatten())


def classes(net: Any, batch: Any) -> Tensor:
    """Cross entropy over the last dimension of a model's output."""
    return F.cross_entropy(net(batch[0]).flatten(0, -2), batch[1].flatten())


def squared(net: Any, batch: Any) -> Tensor:
    return F.mse_loss(net(batch[0]), batch[1])


def groups(size: int = 64, features: int = 8, count: int = 4) -> Callable[[int], Batch]:
    """Draw points of some clusters, each with a linear map of its own to the targets."""
    centres, maps = 2 * torch.randn(count, features), torch.randn(count, features, 4)

    def draw(step: int) -> Batch:
        which = torch.randint(count, (size,))
        noise = torch.randn(size, features)
        return centres[which] + noise, torch.einsum("bf,bfo->bo", noise, maps[which])

    return draw


def sums_of_two(length: int, size: int = 32) -> Callable[[int], Batch]:
    """Draw the adding problem: numbers with marks at two of them, and the sum of these."""

    def draw(step: int) -> Batch:
        numbers, marks = torch.rand(size, length), torch.zeros(size, length)
        first, second = torch.randint(length // 2, (size, 1)), torch.randint(length // 2, length, (size, 1))
        marks.scatter_(1, first, 1.0).scatter_(1, second, 1.0)
        return torch.stack([numbers, marks], -1), (numbers * marks).sum(1, keepdim=True)

    return draw


def waves(length: int, size: int = 32) -> Callable[[int], Batch]:
    """Draw noisy sines, and their next values."""

    def draw(step: int) -> Batch:
        time = torch.arange(length + 1) * (0.2 + 0.3 * torch.rand(size, 1)) + 2 * math.pi * torch.rand(size, 1)
        values = (time.sin() + 0.05 * torch.randn_like(time)).unsqueeze(-1)
        return values[:, :-1], values[:, 1:]

    return draw


class Experts(nn.Module):
    """A layer of experts, of which a router picks one for each token; as in Switch Transformers.

    Args:
        inputs: width of a token.
        outputs: width of what comes out.
        count: how many experts.
        hidden: width inside an expert.
        capacity: how many times its fair share of the tokens an expert takes at most; the others get 0.
    """

    noise = 0.0
    """Standard deviation of what is added to the router's logits."""

    in_half = False
    """The router's softmax is by hand, in float16."""

    def __init__(self, inputs: int, outputs: int, count: int = 4, hidden: int = 32, capacity: float = math.inf) -> None:
        super().__init__()
        self.router = nn.Linear(inputs, count)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs)) for _ in range(count)
        )
        self.outputs, self.capacity = outputs, capacity
        self.register_buffer("offset", torch.zeros(count))
        self.balance = torch.zeros(())
        self.shares = torch.zeros(count)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, -2)
        logits = self.router(tokens)
        logits = logits + self.noise * torch.randn_like(logits)
        powers = logits.half().exp()
        chances = (powers / powers.sum(-1, keepdim=True)).float() if self.in_half else logits.softmax(-1)
        picked = (chances + self.offset).argmax(-1)
        self.shares = F.one_hot(picked, len(self.experts)).float().mean(0)
        self.balance = len(self.experts) * (self.shares * chances.mean(0)).sum()
        room = int(min(self.capacity * len(tokens) / len(self.experts), len(tokens)))
        out = tokens.new_zeros(len(tokens), self.outputs)
        for number, expert in enumerate(self.experts):
            mine = (picked == number).nonzero().squeeze(1)[:room]
            out = out.index_add(0, mine, expert(tokens[mine]) * chances[mine, number : number + 1])
        return out.view(*x.shape[:-1], self.outputs)


def autocast_to_half(**scaler: Any) -> dict[str, Any]:
    """The Trainer's option for float16 autocast with a GradScaler, on a CPU."""
    return {"plugins": [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", **scaler))]}
