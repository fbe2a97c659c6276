"""GANs, adversarial alignment, quantized autoencoders, flows and diffusion."""

import math
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from benchmarks.programs.parts import digits
from benchmarks.programs.steps import ISSUE, PULL, Learner, case
from benchmarks.programs.unseen.common import accuracy, closeness, mlp, r2
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # the usual name
from torch.optim import Adam


def ring(samples: int) -> Tensor:
    angles = 2 * math.pi * torch.rand(samples, 1)
    return torch.cat([angles.cos(), angles.sin()], 1) + 0.05 * torch.randn(samples, 2)


def real_or_not(scores: Tensor, is_real: bool) -> Tensor:
    return F.binary_cross_entropy_with_logits(scores, torch.full_like(scores, float(is_real)))


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
    causes="The adversarial loss cannot reach the generator, which learns from the other loss alone.",
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
    "open-universe 5",
    ISSUE.format("line/open-universe", 5),
    kind="GAN",
    fault="The discriminators' optimizer gets the parameters of the first twice.",
    fix="Those of both.",
    port="Points on a ring in place of speech; the first discriminator sees one coordinate and the second both.",
    causes="The second discriminator is in no optimizer, so that the generator learns from its random weights.",
    words=("optimizer", "not updated", "never", "unchanged", "second"),
)
class FirstTwice(Adversary):
    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        del self.discriminator
        self.first, self.second = mlp(1, 64, 1), mlp(2, 64, 64, 1)

    def configure_optimizers(self) -> Any:
        held = [*self.first.parameters(), *(self.second if self.fixed else self.first).parameters()]  # fault
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "optimizer contains a parameter group with duplicate")
            return self.two_optimizers(held)

    def training_step(self, points: Tensor, batch_idx: int) -> None:
        for_generator, for_discriminators = self.optimizers()
        fakes = self.drawn(len(points))
        self.descend(
            for_discriminators,
            sum(
                real_or_not(judge(points), True) + real_or_not(judge(fakes.detach()), False)
                for judge in (self.from_left, self.second)
            ),
        )
        self.descend(for_generator, real_or_not(self.from_left(fakes), True) + real_or_not(self.second(fakes), True))

    def from_left(self, points: Tensor) -> Any:
        return self.first(points[:, :1])


@case(
    "deepfillv2 6",
    ISSUE.format("zhaoyuzhi/deepfillv2", 6),
    kind="GAN",
    fault="The discriminator's gradients are computed, and no step is taken.",
    fix="optimizer_d.step().",
    port="One coordinate of points on a ring is filled in, given the other, in place of holes in photographs.",
    causes="The discriminator never takes a step, so that the generator learns from its random weights.",
    words=("optimizer", "step", "not updated", "never", "unchanged", "discriminator"),
)
class NoStep(Adversary):
    def training_step(self, points: Tensor, batch_idx: int) -> None:
        for_generator, for_discriminator = self.optimizers()
        fakes = self.filled(points)
        loss = real_or_not(self.discriminator(points), True)
        loss = loss + real_or_not(self.discriminator(fakes.detach()), False)
        for_discriminator.zero_grad()
        self.manual_backward(loss)
        if self.fixed:  # fault
            for_discriminator.step()
        error = 0.1 * (fakes - points).abs().mean()
        self.descend(for_generator, error + real_or_not(self.discriminator(fakes), True))

    def filled(self, points: Tensor) -> Tensor:
        known = points[:, :1]
        made = self.generator(torch.cat([known, torch.randn(len(points), self.noise - 1)], 1))
        return torch.cat([known, made[:, 1:]], 1)

    def score(self) -> float:
        return closeness(self.filled(ring(1000)), ring(1000))


@case(
    "vqvae-vqgan-pytorch-lightning 3",
    ISSUE.format("SerezD/vqvae-vqgan-pytorch-lightning", 3),
    kind="GAN",
    fault="The discriminator's targets for fakes are ones.",
    fix="Zeros.",
    port="Points on a ring, without the autoencoder.",
    causes="The discriminator is told that all is real, so that it tells nothing apart and the generator learns"
    " nothing.",
    words=("target", "label", "constant", "discriminator", "same"),
)
class AllReal(Adversary):
    def training_step(self, points: Tensor, batch_idx: int) -> None:
        for_generator, for_discriminator = self.optimizers()
        fakes = self.drawn(len(points))
        of_fakes = real_or_not(self.discriminator(fakes.detach()), is_real=not self.fixed)  # fault
        self.descend(for_discriminator, real_or_not(self.discriminator(points), True) + of_fakes)
        self.descend(for_generator, real_or_not(self.discriminator(fakes), True))


@case(
    "FL-MRCM 10",
    ISSUE.format("guopengf/FL-MRCM", 10),
    kind="adversarial alignment",
    fault="The adversarial loss is added as a plain number: detach().item().",
    fix="The loss is added, and detached only for the log.",
    port="Two classes in ten columns, of which the target domain shifts one, in place of MR images.",
    causes="The adversarial term has no gradient, so that the encoder is not aligned with the other domain.",
    words=("detach", "term", "no gradient", "item", "constant", "does not reach"),
)
class PlainNumber(Learner):
    rate = 0.002
    steps = 600

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.automatic_optimization = False
        self.encoder, self.classifier = mlp(10, 32, 8), nn.Linear(8, 2)
        self.discriminator = mlp(8, 32, 1)

    def configure_optimizers(self) -> Any:
        model = [*self.encoder.parameters(), *self.classifier.parameters()]
        return Adam(model, self.rate), Adam(self.discriminator.parameters(), self.rate)

    def labelled(self, shift: float) -> tuple[Tensor, Tensor]:
        labels = torch.randint(2, (128,))
        columns = torch.randn(128, 10)
        columns[:, 0] = 3.0 * labels - 1.5 + torch.randn(128) / 2 + shift
        columns[:, 1] = 2.0 * labels - 1.0 + torch.randn(128) / 2
        return columns, labels

    def batch(self) -> tuple[Tensor, Tensor, Tensor]:
        return *self.labelled(0.0), self.labelled(4.0)[0]

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor], batch_idx: int) -> None:
        source, labels, target = batch
        for_model, for_discriminator = self.optimizers()
        of_source, of_target = self.encoder(source), self.encoder(target)
        told = real_or_not(self.discriminator(of_source.detach()), True)
        self.descend(for_discriminator, told + real_or_not(self.discriminator(of_target.detach()), False))
        adversarial = real_or_not(self.discriminator(of_target), True)
        adversarial = adversarial + real_or_not(self.discriminator(of_source), False)
        loss = F.cross_entropy(self.classifier(of_source), labels)
        loss = loss + (adversarial if self.fixed else adversarial.detach().item())  # fault
        self.descend(for_model, loss)

    def score(self) -> float:
        """The share of right classes in the target domain."""
        columns, labels = map(torch.cat, zip(*[self.labelled(4.0) for _ in range(8)], strict=True))
        return accuracy(self.classifier(self.encoder(columns)), labels)


@case(
    "jax-vqvae-gpt 2",
    ISSUE.format("andylolu2/jax-vqvae-gpt", 2),
    kind="VQ-VAE",
    fault="The loss of the codes is computed after the straight-through estimate is put in their place.",
    fix="Before.",
    port="Digits of 8x8, in torch in place of JAX.",
    causes="The codes get no gradient, as what stands in their place has that of the encoder: the codebook is never"
    " trained.",
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
    causes="The sign of the log-determinant is wrong, so that the likelihood grows as all points fall together.",
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
    causes="The target of the velocity is that of another path than the one that the inputs are taken from.",
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
