"""Healthy trainings of unusual models."""

from collections.abc import Callable
from typing import Any

import torch
from benchmarks.health import nets
from benchmarks.health.controls.pretrained import load_trained
from benchmarks.health.controls.registry import control
from benchmarks.health.training import Batch, Setup, Task
from torch import Tensor, nn


@control("cnn vgg")
def many_zeros(s: Setup) -> None:
    """ReLUs of which 70 to 95 % of the outputs are 0, while every unit speaks for some samples.

    Layer by layer the weights are scaled and the biases set by what the data gives: each unit has a deviation of 1, and
    is silent on 92 % of samples and places before the training.
    """
    x = s.data.inputs[:256]
    with torch.no_grad():
        for name, module in s.net.named_children():
            if name in s.layers[:-1]:
                module.bias.zero_()
                units = module(x).movedim(1, 0).flatten(1)
                deviation = units.std(1)
                module.weight.div_(deviation.view(-1, *[1] * (module.weight.ndim - 1)))
                module.bias.copy_(-units.quantile(0.92, 1) / deviation)
            x = module(x)
    s.options["lr"] *= 0.3 if s.base == "cnn" else 3.0


@control("resnet narrow")
def zero_residuals(s: Setup) -> None:
    """The gain of the last norm of each residual branch starts at 0."""
    for module in s.net.modules():
        if isinstance(module, nets.ResidualBlock):
            nn.init.zeros_(module.bn2.weight)


@control("prenorm")
def zero_branches(s: Setup) -> None:
    """The last layer of each branch starts at 0, as in many transformers."""
    for name, parameter in s.net.named_parameters():
        if "out_proj" in name or "fc2" in name:
            nn.init.zeros_(parameter)


@control("resnet")
def zero_head(s: Setup) -> None:
    """The last layer starts at 0: the first loss is exactly that of chance."""
    nn.init.zeros_(s.layer("head").weight)
    nn.init.zeros_(s.layer("head").bias)


class LowRank(nn.Module):
    """A frozen layer and a trainable change of low rank, which starts at 0."""

    def __init__(self, layer: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.layer = layer
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.up(self.down(x))  # type: ignore[no-any-return]  # a module's call is untyped


@control("prenorm")
def low_rank(s: Setup) -> None:
    """LoRA on every projection of a trained transformer."""
    load_trained(s)
    for parameter in s.net.parameters():
        parameter.requires_grad_(False)
    for module in list(s.net.modules()):
        if isinstance(module, nets.Attention):
            module.q_proj, module.v_proj = LowRank(module.q_proj), LowRank(module.v_proj)  # type: ignore[assignment]  # another class


class Experts(nn.Module):
    """Eight layers, of which each token takes the one that a router picks."""

    def __init__(self, width: int, experts: int = 8) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)) for _ in range(experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        weights, picked = self.router(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            if (picked == i).any():
                out[picked == i] = expert(x[picked == i]) * weights[picked == i].unsqueeze(-1)
        return out


@control("prenorm")
def experts(s: Setup) -> None:
    """A mixture of experts in two blocks. Some experts are hardly ever picked, or never."""
    for name in ("block1", "block2"):
        block = s.layer(name)
        block.fc1, block.act, block.fc2 = Experts(32), nn.Identity(), nn.Identity()


@control("prenorm")
def tied(s: Setup) -> None:
    """The head has the weights of the embedding."""
    s.layer("head").weight = s.layer("embedding.token").weight


@control("mlp vgg deep")
def dropout(s: Setup) -> None:
    """Dropout behind the last two activations."""
    for name in s.layers[-3:-1]:
        act = s.behind(name)
        s.net._modules[act] = nn.Sequential(s.layer(act), nn.Dropout(0.3))  # noqa: SLF001  # keeps the order


class Dropped(nn.Module):
    """Leaves out a block at random while training (stochastic depth)."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        return x if self.training and torch.rand(()) < 0.3 else self.block(x)


@control("vit")
def depth_at_random(s: Setup) -> None:
    """Blocks are left out at random."""
    for name in ("block1", "block3"):
        s.net._modules[name] = Dropped(s.layer(name))  # noqa: SLF001  # keeps the order of layers
    s.layers = [name.replace(".", ".block.", 1) if name[:6] in ("block1", "block0") else name for name in s.layers]


@control("prenorm")
def shared_blocks(s: Setup) -> None:
    """One block runs four times."""
    for name in ("block1", "block2", "block3"):
        s.net._modules[name] = s.layer("block0")  # noqa: SLF001  # keeps the order of layers
    s.layers = [name for name in s.layers if name[:6] not in ("block1", "block2", "block3")]


@control("vgg")
def leaky(s: Setup) -> None:
    """Leaky ReLUs."""
    s.net = nets.vgg(lambda: nn.LeakyReLU(0.1))


@control("resnet")
def group_norms(s: Setup) -> None:
    """Group norm in place of batch norm."""
    for module in s.net.modules():
        if isinstance(module, nets.ResidualBlock):
            module.bn1 = nn.GroupNorm(4, module.bn1.num_features)  # type: ignore[assignment]  # another class
            module.bn2 = nn.GroupNorm(4, module.bn2.num_features)  # type: ignore[assignment]  # another class


class Pair(nn.Module):
    """A generator of digits, and a critic that tells them from real ones."""

    def __init__(self, act: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(16, 64), act(), nn.Linear(64, 64), act(), nn.Linear(64, 64))
        layers = nn.Linear(64, 64), act(), nn.Linear(64, 64), act(), nn.Linear(64, 1)
        self.critic = nn.Sequential(nn.Flatten(), *layers)

    def made(self, count: int) -> Tensor:
        return self.generator(torch.randn(count, 16)).view(count, 1, 8, 8)  # type: ignore[no-any-return]  # untyped call


class Adversaries(Task):
    """A GAN: two optimizers, stepped by hand."""

    net: Pair

    def __init__(self, setup: Setup, seed: int) -> None:
        super().__init__(setup, seed)
        self.automatic_optimization = False

    def training_step(self, batch: Batch, batch_idx: int) -> None:  # type: ignore[override]  # it steps by itself
        optimizers: Any = self.optimizers()
        real, made = batch[0], self.net.made(len(batch[0]))
        self._step(optimizers[0], _sides(self.net.critic(real), self.net.critic(made.detach())))
        loss = nn.functional.softplus(-self.net.critic(made)).mean()
        self._step(optimizers[1], loss)
        self.losses.append(loss.item())

    def _step(self, optimizer: Any, loss: Tensor) -> None:
        self.toggle_optimizer(optimizer)
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        self.untoggle_optimizer(optimizer)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        _sides(self.net.critic(batch[0]), self.net.critic(self.net.made(len(batch[0]))))

    def configure_optimizers(self) -> Any:
        parts = self.net.critic, self.net.generator
        return [torch.optim.Adam(part.parameters(), 5e-4, betas=(0.5, 0.99)) for part in parts]


def _sides(real: Tensor, made: Tensor) -> Tensor:
    return nn.functional.softplus(-real).mean() + nn.functional.softplus(made).mean()


@control("tanh")
def adversaries(s: Setup) -> None:
    """A generator and a critic."""
    s.net = Pair(lambda: nn.LeakyReLU(0.2))
    s.layers = ["generator.0", "critic.1"]
    s.steps = 400  # two for each batch
    s.task, s.classifies = Adversaries, False
