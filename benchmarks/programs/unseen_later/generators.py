"""GANs, discrete codes, diffusion and flows."""

import math
from typing import Any

import torch
from benchmarks.programs.parts import digits
from benchmarks.programs.steps import ISSUE, PULL, Learner, case
from benchmarks.programs.unseen.common import closeness, mlp
from benchmarks.programs.unseen.generators import Adversary, real_or_not, ring
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  # the usual name
from torch.optim import Adam


@case(
    "idinvert_pytorch-reproduced 1",
    ISSUE.format("Hsintien-Ng/idinvert_pytorch-reproduced", 1),
    kind="GAN",
    fault="The gradients of the discriminator are not cleared before its backward pass.",
    fix="optimizer_D.zero_grad().",
    port="Points on a ring in place of an encoder of faces.",
    causes="The discriminator's gradients are added up over all steps, those of the generator's loss among them.",
    words=("zero_grad", "accumulat", "clear", "grow", "sum of"),
)
class NeverCleared(Adversary):
    def training_step(self, points: Tensor, batch_idx: int) -> None:
        for_generator, for_discriminator = self.optimizers()
        fakes = self.drawn(len(points))
        if self.fixed:
            for_discriminator.zero_grad()  # fault
        told = real_or_not(self.discriminator(points), True) + real_or_not(self.discriminator(fakes.detach()), False)
        self.manual_backward(told)
        for_discriminator.step()
        self.descend(for_generator, real_or_not(self.discriminator(fakes), True))


@case(
    "VAE_gumble_softmax 1",
    ISSUE.format("dev4488/VAE_gumble_softmax", 1),
    kind="VAE",
    fault="The divergence from the prior has a minus before it.",
    fix="No minus.",
    port="Digits of 8x8, with eight codes of eight kinds, in place of MNIST.",
    causes="The sign of the divergence is wrong, so that codes are driven away from the prior.",
    words=("sign", "negative", "divergence", "kl", "prior", "saturat"),
)
class MinusDivergence(Learner):
    steps = 600

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.images = (digits(8)[0].flatten(1) > 127).float()
        self.encoder, self.decoder = mlp(64, 64, 64), mlp(64, 64, 64)

    def batch(self) -> Tensor:
        return self.images[torch.randint(len(self.images), (64,))]

    def losses(self, images: Tensor, sign: int) -> Tensor:
        logits = self.encoder(images).view(-1, 8, 8)
        codes = F.gumbel_softmax(logits, tau=0.7)
        error = F.binary_cross_entropy_with_logits(self.decoder(codes.flatten(1)), images, reduction="none").sum(1)
        logs = logits.log_softmax(2)
        return error + sign * (logs.exp() * (logs + math.log(8))).sum((1, 2))

    def training_step(self, images: Tensor, batch_idx: int) -> Tensor:
        return self.losses(images, 1 if self.fixed else -1).mean()  # fault

    def score(self) -> float:
        """1, less the bits for each pixel, by the bound of the likelihood: 0 is a coin."""
        return 1 - self.losses(self.images, 1).mean().item() / (64 * math.log(2))


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
    causes="The target is the input itself, so that the network learns to change nothing.",
    words=("target", "input", "identity", "copy", "copies", "noise"),
)
class NoisyTarget(Noised):
    def training_step(self, points: Tensor, batch_idx: int) -> Tensor:
        levels = torch.randint(20, (len(points),))
        noisy = self.noised(points, levels)
        return F.mse_loss(self(noisy, levels), points if self.fixed else noisy)  # fault


@case(
    "streaming-flow-policy 15",
    PULL.format("siddancha/streaming-flow-policy", 15),
    kind="diffusion",
    fault="The optimizer of the diffusion policy gets the parameters of the other policy, of a flow.",
    fix="Those of the network that predicts the noise.",
    port="Points on a ring in place of actions; the network gives the points without noise.",
    causes="The optimizer holds the parameters of another network, so that the one that is trained never changes.",
    words=("optimizer", "not updated", "never", "unchanged", "parameters"),
)
class OtherNetwork(Noised):
    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.flow_net = mlp(3, 64, 64, 2)

    def configure_optimizers(self) -> Any:
        return Adam((self.net if self.fixed else self.flow_net).parameters(), self.rate)  # fault

    def training_step(self, points: Tensor, batch_idx: int) -> Tensor:
        levels = torch.randint(20, (len(points),))
        return F.mse_loss(self(self.noised(points, levels), levels), points)
