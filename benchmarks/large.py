"""How much memory a look at a large model takes.

    python benchmarks/large.py                     1.2 billion weights in bfloat16: 8 GB of memory, some minutes
    python benchmarks/large.py --weights 1e6       the same of a small one
    python benchmarks/large.py --only HealthMonitor ParameterLogger

A decoder with random weights, built like Llama, takes a few steps of plain SGD on 64 tokens through a Trainer on the
CPU, and each step is due. Each row of the table is a process of its own. *Extra memory* is the most that lay in memory
at any time beyond that of the bare run, in MB (10^6 bytes) and as a share of the weights.

Tensors of 1 MB or more get memory of their own (`MALLOC_MMAP_THRESHOLD_`), which goes back to the system when they are
freed. With glibc's default, gradients below 32 MB come from the heap, where whatever small things lie between them keep
holes from being used: the bare run grows from step to step too, and the holes count as memory of who made the small
things.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from overhead import fit
from torch import Tensor, nn

from hookboard import ActivationLogger, GradientLogger, HealthMonitor, ParameterLogger

TOKENS = 64
HEAD = 64
"""Width of one attention head; no net is narrower."""

BARE = "bare"

WATCHING: dict[str, Callable[[], list[Any]]] = {
    BARE: list,
    "HealthMonitor": lambda: [HealthMonitor()],
    "ActivationLogger": lambda: [ActivationLogger()],
    "GradientLogger": lambda: [GradientLogger()],
    "ParameterLogger": lambda: [ParameterLogger()],
}
"""What each row of the table watches with, in its default settings."""


@dataclass(frozen=True)
class Size:
    """The width of a net, how many blocks it has, and how many words it knows."""

    width: int
    blocks: int
    words: int

    @staticmethod
    def of(weights: float) -> "Size":
        """That of a net with about so many weights.

        >>> Size.of(1.2e9)
        Size(width=2048, blocks=21, words=32768)
        """
        width = 2048
        # Embedding and head: 16 words for each unit. A block: 4 square matrices, and 3 that are 2.75 times wider.
        while width > HEAD and weights < (32 + 4 * 12.25) * width**2:
            width //= 2
        return Size(width, max(1, round((weights / width**2 - 32) / 12.25)), 16 * width)


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self._heads(project(x)) for project in (self.q, self.k, self.v))
        mixed = nn.functional.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True)
        return self.o(mixed.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (-1, HEAD)).transpose(1, 2)


def rotated(x: Tensor) -> Tensor:
    """Rotary position embedding, of queries or keys of shape (samples, heads, tokens, HEAD)."""
    speed = 10_000 ** -(torch.arange(0, HEAD, 2) / HEAD)
    angle = torch.arange(x.shape[2])[:, None] * speed
    cos, sin = angle.cos().to(x), angle.sin().to(x)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


class Gated(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        wide = width * 11 // 4
        self.gate, self.up = (nn.Linear(width, wide, bias=False) for _ in range(2))
        self.down = nn.Linear(wide, width, bias=False)
        self.act = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm(width), Attention(width)
        self.mlp_norm, self.mlp = nn.RMSNorm(width), Gated(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Decoder(LightningModule):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size.words, size.width)
        self.blocks = nn.Sequential(*(Block(size.width) for _ in range(size.blocks)))
        self.norm, self.head = nn.RMSNorm(size.width), nn.Linear(size.width, size.words, bias=False)

    def training_step(self, tokens: Tensor) -> Tensor:
        logits = self.head(self.norm(self.blocks(self.embedding(tokens[:, :-1]))))
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-2)


@dataclass(frozen=True)
class Taken:
    """What one process found.

    Args:
        weights: how many the net has.
        peak: the most bytes that lay in memory at any time.
    """

    weights: int
    peak: int


def take(name: str, weights: float, steps: int) -> Taken:
    """Train the net in this process, watched as a row of the table says."""
    torch.manual_seed(0)
    size, callbacks = Size.of(weights), WATCHING[name]()
    torch.set_default_dtype(torch.bfloat16)
    model = Decoder(size)
    torch.set_default_dtype(torch.float32)
    fit(model, torch.randint(size.words, (1, TOKENS + 1)), 1 + steps, callbacks, log_every_n_steps=1)
    return Taken(sum(parameter.numel() for parameter in model.parameters()), peak_memory())


def peak_memory() -> int:
    """The most bytes of this process that lay in memory at any time; what its parent held does not count."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def take_elsewhere(name: str, weights: float, steps: int) -> Taken:
    """`take` in a process of its own, whose large tensors have memory of their own."""
    command = [sys.executable, __file__, "--weights", str(weights), "--steps", str(steps), "--take", name]
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "1000000"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return Taken(**json.loads(done.stdout.splitlines()[-1]))


def row(name: str, taken: Taken, bare: Taken) -> str:
    extra = taken.peak - bare.peak
    return f"| `{name}` | {extra / 1e6:,.0f} MB | {100 * extra / (2 * taken.weights):.1f} % |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=float, default=1.2e9, help="about how many the net has; 2e5 or more")
    parser.add_argument("--steps", type=int, default=3, help="steps after the first")
    parser.add_argument("--only", nargs="+", choices=[*WATCHING][1:], help="these rows alone")
    parser.add_argument("--take", choices=WATCHING, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.take:
        print(json.dumps(asdict(take(args.take, args.weights, args.steps))))
        return

    bare = take_elsewhere(BARE, args.weights, args.steps)
    print(
        f"{bare.weights:,} weights in bfloat16, {TOKENS} tokens; torch {torch.__version__}, {platform.machine()}. "
        f"Bare: {bare.peak / 1e6:,.0f} MB at most.\n"
    )
    print("| watched by | extra memory | of the weights |\n|---|---|---|")
    for name in args.only or [*WATCHING][1:]:
        print(row(name, take_elsewhere(name, args.weights, args.steps), bare), flush=True)


if __name__ == "__main__":
    main()
