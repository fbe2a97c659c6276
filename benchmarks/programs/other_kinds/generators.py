"""Adversarial networks, autoencoders, flows and diffusion."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from benchmarks.programs.other_kinds.common import closeness, mlp
from benchmarks.programs.parts import accuracy, digits, r2
from benchmarks.programs.program import ISSUE, PULL, Learner, case, healthy
from sklearn.datasets import make_moons  # type: ignore[import-untyped]  # has no stubs
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # the usual name
from torch.optim import Adam
from torch.optim.lr_scheduler import StepLR


def ring(samples: int) -> Tensor:
    angles = 2 * math.pi * torch.rand(samples, 1)
    return torch.cat([angles.cos(), angles.sin()], 1) + 0.05 * torch.randn(samples, 2)


class Adversary(Learner):
    """A generator and a discriminator, each with an optimizer, of which the discriminator's is the faster."""

    rate = 0.0005
    steps = 800

    def __init__(self, fixed: bool, condition: int = 0, noise: int = 4) -> None:
        super().__init__(fixed)
        self.automatic_optimization = False
        self.noise = noise
        self.generator = mlp(noise + condition, 64, 64, 2)
        self.discriminator = mlp(2 + condition, 64, 64, 1)

    def configure_optimizers(self) -> Any:
        return self.two_optimizers(self.discriminator.parameters())

    def two_optimizers(self, of_discriminator: Iterable[nn.Parameter]) -> list[Adam]:
        held = ((self.generator.parameters(), self.rate), (of_discriminator, 4 * self.rate))
        return [Adam(part, rate, betas=(0.5, 0.999)) for part, rate in held]

    def drawn(self, samples: int) -> Any:
        return self.generator(torch.randn(samples, self.noise))

    def batch(self) -> Tensor:
        return ring(128)

    def score(self) -> float:
        """How close 1000 samples are to real ones."""
        return closeness(self.drawn(1000), ring(1000))


@case(
    "image2reverb 37",
    ISSUE.format("nikhilsinghmus/image2reverb", 37),
    kind="GAN",
    fault="The generator's adversarial loss gets its samples detached.",
    fix="No detach().",
    port="Points on four small rings in place of sounds; the loss beside it is the distance from a real point of"
    " the same ring.",
    words=("detach", "generator", "no gradient", "does not reach", "no influence", "term"),
)
class DetachedFakes(Adversary):
    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed, condition=4)
        self.middles = 2 * torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1]])

    def batch(self) -> tuple[Tensor, Tensor]:
        which = torch.randint(4, (128,))
        return self.middles[which] + ring(128), F.one_hot(which, 4).float()

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        points, which = batch
        for_generator, for_discriminator = self.optimizers()
        fakes = self.generator(torch.cat([torch.randn(128, self.noise), which], 1))
        judged = self.discriminator(torch.cat([fakes if self.fixed else fakes.detach(), which], 1))  # fault
        distance = 0.1 * (fakes - points).abs().mean()
        self.descend(for_generator, F.mse_loss(judged, torch.ones_like(judged)) + distance)
        of_real, of_fake = (self.discriminator(torch.cat([values, which], 1)) for values in (points, fakes.detach()))
        self.descend(for_discriminator, (of_real - 1).square().mean() + of_fake.square().mean())

    def score(self) -> float:
        """How close samples are to real ones, seen from the middle of their ring."""
        points, which = map(torch.cat, zip(*[self.batch() for _ in range(8)], strict=True))
        fakes = self.generator(torch.cat([torch.randn(1024, self.noise), which], 1))
        middles = which @ self.middles
        return closeness(fakes - middles, points - middles)


@case(
    "jax-vqvae-gpt 2",
    ISSUE.format("andylolu2/jax-vqvae-gpt", 2),
    kind="VQ-VAE",
    fault="The loss of the codes is computed after the straight-through estimate is put in their place.",
    fix="Before.",
    port="Digits of 8x8, in torch in place of JAX.",
    words=("code", "no gradient", "never", "unchanged", "not updated"),
)
class Quantized(Learner):
    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.images = digits(8)[0].flatten(1) / 255
        self.encoder, self.decoder = mlp(64, 64, 32), mlp(32, 64, 64)
        self.codes = nn.Parameter((2 * torch.rand(32, 8) - 1) / 32)

    def batch(self) -> Tensor:
        return self.images[torch.randint(len(self.images), (64,))]

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        inputs = self.encoder(images).view(-1, 4, 8)
        nearest = self.codes[torch.cdist(inputs.flatten(0, 1), self.codes).argmin(1)].view_as(inputs)
        straight = inputs + (nearest - inputs).detach()
        found = nearest if self.fixed else straight  # fault
        encoding = (found.detach() - inputs).square().mean()
        commitment = (found - inputs.detach()).square().mean()
        return self.decoder(straight.flatten(1)), encoding + commitment

    def training_step(self, images: Tensor, batch_idx: int) -> Tensor:
        outputs, of_codes = self(images)
        return F.mse_loss(outputs, images) + 0.25 * of_codes

    def score(self) -> float:
        return r2(self(self.images)[0], self.images)


@case(
    "flowtorch 100",
    PULL.format("facebookincubator/flowtorch", 100),
    kind="normalizing flow",
    fault="The log-determinant of the inverse has the sign of the other direction.",
    fix="The other sign.",
    port="Affine couplings in place of splines, on points of a ring.",
    words=("sign", "determinant", "diverge", "collapse", "unbounded", "grow"),
)
class Couplings(Learner):
    steps = 500

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.parts = nn.ModuleList(mlp(1, 64, 2) for _ in range(6))

    def batch(self) -> Tensor:
        return ring(128)

    def inverse(self, points: Tensor) -> tuple[Tensor, Tensor]:
        volume = torch.zeros(len(points))
        for part in self.parts:
            kept, moved = points.unbind(1)
            scale, shift = part(kept.unsqueeze(1)).unbind(1)
            moved = (moved - shift) * (-2 * scale.tanh()).exp()
            volume = volume - 2 * scale.tanh()
            points = torch.stack([moved, kept], 1)
        return points, volume if self.fixed else -volume  # fault

    def training_step(self, points: Tensor, batch_idx: int) -> Tensor:
        inner, volume = self.inverse(points)
        return (inner.square().sum(1) / 2 + math.log(2 * math.pi) - volume).mean()

    def score(self) -> float:
        points = torch.randn(1000, 2)
        for part in reversed(self.parts):
            moved, kept = points.unbind(1)
            scale, shift = part(kept.unsqueeze(1)).unbind(1)
            points = torch.stack([kept, moved * (2 * scale.tanh()).exp() + shift], 1)
        return closeness(points, ring(1000))


@case(
    "CellFlow 305",
    PULL.format("theislab/CellFlow", 305),
    kind="flow matching",
    fault="The velocity is target - source, though the path starts from noise.",
    fix="target - noise.",
    port="Points of four places, which are turned by a quarter, in place of cells; torch in place of JAX.",
    words=("target", "velocity", "path", "noise"),
)
class Velocity(Learner):
    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.net = mlp(5, 64, 64, 2)

    def batch(self) -> tuple[Tensor, Tensor]:
        source = 2.0 * torch.randint(2, (128, 2)) - 1 + 0.1 * torch.randn(128, 2)
        return source, torch.stack([-2 * source[:, 1], source[:, 0] / 2], 1)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        source, target = batch
        noise, times = torch.randn_like(target), torch.rand(len(target), 1)
        between = noise + times * (target - noise)
        velocity = target - (noise if self.fixed else source)  # fault
        return F.mse_loss(self.net(torch.cat([between, source, times], 1)), velocity)

    def score(self) -> float:
        source, target = map(torch.cat, zip(*[self.batch() for _ in range(4)], strict=True))
        points = torch.randn_like(target)
        for step in range(20):
            times = torch.full((len(points), 1), step / 20)
            points = points + self.net(torch.cat([points, source, times], 1)) / 20
        return r2(points, target)


@case(
    "Molecule-Generator 20",
    PULL.format("DaoyuanLi2816/Molecule-Generator", 20),
    kind="VAE",
    fault="The cross entropy is averaged over all positions, most of which are padding.",
    fix="Padding is ignored.",
    port="Texts of three to six tokens, padded to 40, in place of molecules; a plain VAE.",
    words=("pad", "constant", "collapse", "posterior", "ignore"),
)
class PaddedTexts(Learner):
    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.tokens = nn.Embedding(8, 16)
        self.encoder = nn.GRU(16, 32, batch_first=True)
        self.coder = nn.Linear(32, 32)
        self.decoder = mlp(16, 64, 40 * 8)

    def batch(self) -> Tensor:
        lengths = torch.randint(3, 7, (64, 1))
        return torch.randint(1, 8, (64, 40)) * (torch.arange(40) < lengths)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        _, last = self.encoder(self.tokens(tokens[:, :6]))
        means, logs = self.coder(last[0]).chunk(2, 1)
        drawn = means + (logs / 2).exp() * torch.randn_like(means) if self.training else means
        return self.decoder(drawn).view(-1, 40, 8), means, logs

    def training_step(self, tokens: Tensor, batch_idx: int) -> Tensor:
        logits, means, logs = self(tokens)
        ignored = 0 if self.fixed else -100  # fault
        error = F.cross_entropy(logits.flatten(0, 1), tokens.flatten(), ignore_index=ignored)
        divergence = (means.square() + logs.exp() - 1 - logs).mean() / 2
        return error + 0.2 * divergence

    def score(self) -> float:
        """The share of tokens that are read back right, without the padding."""
        tokens = self.batch()
        return accuracy(self(tokens)[0][tokens > 0], tokens[tokens > 0])


@case(
    "VAME 26",
    ISSUE.format("LINCellularNeuroscience/VAME", 26),
    kind="autoencoder",
    fault="With the schedule turned off, StepLR has gamma=0.",
    fix="gamma=1.",
    port="Short waves in place of poses, without the variational part; an epoch is a step, and 100 are 40.",
    words=("learning rate", "rate", "zero", "schedule", "not updated", "stops", "unchanged"),
)
class RateGone(Learner):
    rate = 0.005

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.encoder, self.code = nn.GRU(1, 32, batch_first=True), nn.Linear(32, 4)
        self.decoder, self.head = nn.GRU(4, 32, batch_first=True), nn.Linear(32, 1)

    def configure_optimizers(self) -> Any:
        optimizer = Adam(self.parameters(), self.rate)
        schedule = StepLR(optimizer, step_size=40, gamma=1 if self.fixed else 0)  # fault
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def batch(self) -> Tensor:
        paces, phases = 0.3 + torch.rand(64, 1) / 2, 6.3 * torch.rand(64, 1)
        return torch.sin(paces * torch.arange(12) + phases).unsqueeze(2)

    def forward(self, series: Tensor) -> Any:
        codes = self.code(self.encoder(series)[1][0])
        return self.head(self.decoder(codes.unsqueeze(1).expand(-1, 12, -1))[0])

    def training_step(self, series: Tensor, batch_idx: int) -> Tensor:
        return F.mse_loss(self(series), series)

    def score(self) -> float:
        series = self.batch()
        return r2(self(series).flatten(), series.flatten())


class Noised(Learner):
    """Diffusion of points on a ring in 20 levels, by a network that gives the points without noise."""

    rate = 0.002
    steps = 600

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.net = mlp(3, 64, 64, 2)
        self.kept = (1 - torch.linspace(0.01, 0.4, 20)).cumprod(0)

    def batch(self) -> Tensor:
        return ring(128)

    def forward(self, points: Tensor, levels: Tensor) -> Any:
        return self.net(torch.cat([points, levels.unsqueeze(1) / 20], 1))

    def noised(self, points: Tensor, levels: Tensor) -> Tensor:
        kept = self.kept[levels].unsqueeze(1)
        return kept.sqrt() * points + (1 - kept).sqrt() * torch.randn_like(points)

    def score(self) -> float:
        """How close 1000 samples are to real points, less how far they are from the middle of the ring's band."""
        points = torch.randn(1000, 2)
        for level in reversed(range(20)):
            points = self(points, torch.full((1000,), level))
            if level:
                points = self.noised(points, torch.full((1000,), level - 1))
        return closeness(points, ring(1000)) - (points.norm(dim=1) - 1).abs().mean().item()


@case(
    "dppo 14",
    ISSUE.format("irom-princeton/dppo", 14),
    kind="diffusion",
    fault="When the points without noise are predicted, they are compared with the noisy ones.",
    fix="With those without noise.",
    port="Points on a ring in place of actions of robots.",
    words=("target", "input", "identity", "copy", "copies", "noise"),
)
class NoisyTarget(Noised):
    def training_step(self, points: Tensor, batch_idx: int) -> Tensor:
        levels = torch.randint(20, (len(points),))
        noisy = self.noised(points, levels)
        return F.mse_loss(self(noisy, levels), points if self.fixed else noisy)  # fault


def moons(count: int) -> Tensor:
    points, _ = make_moons(count, noise=0.05, random_state=int(torch.randint(1 << 30, ())))
    return torch.tensor(points - [0.5, 0.25], dtype=torch.float32)


@healthy("WGAN with a gradient penalty", "GAN", 0.8)
class Wasserstein(Learner):
    """Moons; five steps of the critic for one of the generator."""

    steps = 1000

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator, self.critic = mlp(4, 64, 64, 2), mlp(2, 64, 64, 1)

    def configure_optimizers(self) -> Any:
        return [Adam(part.parameters(), 0.001, betas=(0.0, 0.9)) for part in (self.generator, self.critic)]

    def batch(self) -> Tensor:
        return moons(64)

    def training_step(self, points: Tensor, batch_idx: int) -> None:
        for_generator, for_critic = self.optimizers()
        fakes = self.generator(torch.randn(64, 4))
        if batch_idx % 5 == 4:
            self.descend(for_generator, -self.critic(fakes).mean())
            return
        between = torch.lerp(points, fakes.detach(), torch.rand(64, 1)).requires_grad_()
        slopes = torch.autograd.grad(self.critic(between).sum(), between, create_graph=True)[0]
        apart = self.critic(fakes.detach()).mean() - self.critic(points).mean()
        self.descend(for_critic, apart + (slopes.norm(dim=1) - 1).square().mean())

    def score(self) -> float:
        return closeness(self.generator(torch.randn(1000, 4)), moons(1000))


@healthy("diffusion of moons", "diffusion", 0.9)
class Denoising(Learner):
    """DDPM with 40 levels; the net predicts the noise."""

    rate = 0.002
    steps = 800

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(9, 64, 64, 2)
        self.betas = torch.linspace(0.001, 0.2, 40)
        self.kept = (1 - self.betas).cumprod(0)

    def batch(self) -> Tensor:
        return moons(256)

    def forward(self, points: Tensor, levels: Tensor) -> Any:
        angles = levels.unsqueeze(1) / 40 * math.pi * torch.tensor([0.5, 1, 2])
        return self.net(torch.cat([points, levels.unsqueeze(1) / 40, angles.sin(), angles.cos()], 1))

    def training_step(self, points: Tensor, batch_idx: int) -> Tensor:
        levels, noise = torch.randint(40, (len(points),)), torch.randn_like(points)
        kept = self.kept[levels].unsqueeze(1)
        return F.mse_loss(self(kept.sqrt() * points + (1 - kept).sqrt() * noise, levels), noise)

    def score(self) -> float:
        points = torch.randn(1000, 2)
        for level in reversed(range(40)):
            beta, kept = self.betas[level], self.kept[level]
            noise = self(points, torch.full((1000,), level))
            points = (points - beta / (1 - kept).sqrt() * noise) / (1 - beta).sqrt()
            points = points + (beta.sqrt() * torch.randn_like(points) if level else 0.0)
        return closeness(points, moons(1000))
