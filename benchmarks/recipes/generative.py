"""Generative models and learning without labels, by their papers' and torch's examples."""

import itertools
import math
from functools import partial
from typing import Any

import torch
from benchmarks.recipes import data
from benchmarks.recipes.recipe import Plain, Training, loader, recipe, supervised
from benchmarks.recipes.vision import EXAMPLES
from lightning.pytorch import LightningModule
from torch import Tensor, nn, optim
from torch.nn import functional as F  # noqa: N812  # the usual name


def perceptron(*sizes: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])


def rows() -> Tensor:
    """The digits as rows of 64 numbers from 0 to 1."""
    return (data.digits()[0].flatten(1) + 1) / 2


def moons() -> Tensor:
    """Two moons, standardized."""
    from sklearn.datasets import make_moons  # type: ignore[import-untyped]  # has no stubs

    points = torch.tensor(make_moons(2000, noise=0.05, random_state=0)[0], dtype=torch.float32)
    return (points - points.mean(0)) / points.std(0)


# Adversarial


class Adversarial(LightningModule):
    """A generator and a discriminator, in turns, as in Lightning's example of a GAN.

    Args:
        generator: from noise to pictures.
        discriminator: from pictures to one number.
        noise: the shape of the noise of one sample.
        losses: the discriminator's loss of real and fake outputs, and the generator's loss of fake outputs.
        optimizer: makes both optimizers.
        rounds: updates of the discriminator for one of the generator.
        penalty: the weight of the penalty on the norm of the discriminator's gradient.
    """

    def __init__(
        self,
        generator: nn.Module,
        discriminator: nn.Module,
        noise: tuple[int, ...],
        losses: tuple[Any, Any],
        optimizer: Any,
        rounds: int = 1,
        penalty: float = 0.0,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator, self.discriminator = generator, discriminator
        self.noise, self.losses, self.optimizer = noise, losses, optimizer
        self.rounds, self.penalty = rounds, penalty

    def training_step(self, batch: Any, batch_idx: int) -> None:
        of_generator, of_discriminator = self.optimizers()
        real = batch[0]
        fake = self.generator(torch.randn(len(real), *self.noise))
        loss = self.losses[0](self.discriminator(real), self.discriminator(fake.detach()))
        loss = loss + self.penalty * self._steepness(real, fake.detach()) if self.penalty else loss
        of_discriminator.zero_grad()
        self.manual_backward(loss)
        of_discriminator.step()
        if batch_idx % self.rounds == 0:
            self.toggle_optimizer(of_generator)
            of_generator.zero_grad()
            self.manual_backward(self.losses[1](self.discriminator(fake)))
            of_generator.step()
            self.untoggle_optimizer(of_generator)

    def _steepness(self, real: Tensor, fake: Tensor) -> Tensor:
        share = torch.rand(len(real), *[1] * (real.dim() - 1))
        between = (share * real + (1 - share) * fake).requires_grad_()
        (slope,) = torch.autograd.grad(self.discriminator(between).sum(), between, create_graph=True)
        return (slope.flatten(1).norm(dim=1) - 1).square().mean()

    def configure_optimizers(self) -> Any:
        return self.optimizer(self.generator.parameters()), self.optimizer(self.discriminator.parameters())


def binary(logits: Tensor, target: float) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, target))


ORIGINAL = (lambda real, fake: binary(real, 1.0) + binary(fake, 0.0), lambda fake: binary(fake, 1.0))
SQUARED = (
    lambda real, fake: (real - 1).square().mean() + fake.square().mean(),
    lambda fake: (fake - 1).square().mean(),
)
CRITIC = (lambda real, fake: fake.mean() - real.mean(), lambda fake: -fake.mean())


@recipe("DCGAN", EXAMPLES.format("dcgan/main.py: Adam 2e-4, beta1 0.5, weights of deviation 0.02"))
def dcgan() -> Training:
    generator = nn.Sequential(
        nn.ConvTranspose2d(16, 32, 4, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(True),
        nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(True),
        nn.ConvTranspose2d(16, 1, 4, 2, 1, bias=False),
        nn.Tanh(),
    )
    discriminator = nn.Sequential(
        nn.Conv2d(1, 16, 4, 2, 1, bias=False),
        nn.LeakyReLU(0.2, True),
        nn.Conv2d(16, 32, 4, 2, 1, bias=False),
        nn.BatchNorm2d(32),
        nn.LeakyReLU(0.2, True),
        nn.Conv2d(32, 1, 4, bias=False),
    )
    for layer in [*generator, *discriminator]:
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.normal_(layer.weight, 0.0, 0.02)
        elif isinstance(layer, nn.BatchNorm2d):
            nn.init.normal_(layer.weight, 1.0, 0.02)
    adam = partial(optim.Adam, lr=2e-4, betas=(0.5, 0.999))
    module = Adversarial(generator, discriminator, (16, 1, 1), ORIGINAL, adam)
    return Training(module, loader(data.digits(16)[0], size=64), steps=300, falls=False)


@recipe("LSGAN", "eriklindernoren/PyTorch-GAN implementations/lsgan: Adam 2e-4, beta1 0.5")
def lsgan() -> Training:
    generator = nn.Sequential(perceptron(32, 128, 128, 64), nn.Sigmoid())
    discriminator = perceptron(64, 128, 64, 1, activation=partial(nn.LeakyReLU, 0.2))  # type: ignore[arg-type]  # makes one
    adam = partial(optim.Adam, lr=2e-4, betas=(0.5, 0.999))
    module = Adversarial(generator, discriminator, (32,), SQUARED, adam)
    return Training(module, loader(rows(), size=64), steps=300, falls=False)


@recipe("WGAN-GP", "eriklindernoren/PyTorch-GAN implementations/wgan_gp: Adam 2e-4, five rounds, penalty 10")
def wgan() -> Training:
    generator = nn.Sequential(perceptron(32, 128, 128, 64), nn.Sigmoid())
    discriminator = perceptron(64, 128, 64, 1, activation=partial(nn.LeakyReLU, 0.2))  # type: ignore[arg-type]  # makes one
    adam = partial(optim.Adam, lr=2e-4, betas=(0.5, 0.999))
    module = Adversarial(generator, discriminator, (32,), CRITIC, adam, rounds=5, penalty=10.0)
    return Training(module, loader(rows(), size=64), steps=300, falls=False)


# Autoencoders


@recipe("autoencoder", "lightning.ai/docs/pytorch starter/introduction: LitAutoEncoder, Adam 1e-3")
def autoencoder() -> Training:
    def loss(net: Any, batch: Any) -> Tensor:
        return F.mse_loss(net(batch[0]), batch[0])

    net = nn.Sequential(perceptron(64, 64, 3), perceptron(3, 64, 64))
    return Training(Plain(net, loss, partial(optim.Adam, lr=1e-3)), loader(rows(), size=32), steps=300)


class Variational(nn.Module):
    """The model of pytorch/examples vae."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(64, 100), nn.Linear(100, 8), nn.Linear(100, 8)
        self.fc3, self.fc4 = nn.Linear(8, 100), nn.Linear(100, 64)

    def forward(self, given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = F.relu(self.fc1(given))
        mean, log_variance = self.fc21(hidden), self.fc22(hidden)
        code = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        return torch.sigmoid(self.fc4(F.relu(self.fc3(code)))), mean, log_variance


def variational(beta: float) -> Training:
    def loss(net: Any, batch: Any) -> Tensor:
        made, mean, log_variance = net(batch[0])
        away = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
        return F.binary_cross_entropy(made, batch[0], reduction="sum") + beta * away

    return Training(Plain(Variational(), loss, partial(optim.Adam, lr=1e-3)), loader(rows(), size=128), steps=300)


recipe("VAE", EXAMPLES.format("vae/main.py: Adam 1e-3, losses summed"))(partial(variational, 1.0))
recipe("beta-VAE", "Higgins et al. 2017: a VAE with beta 4")(partial(variational, 4.0))


class Quantized(nn.Module):
    """An autoencoder whose codes are the nearest of 32 learned vectors, with a straight-through gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = perceptron(64, 64, 32), perceptron(32, 64, 64)
        self.book = nn.Embedding(32, 8)
        nn.init.uniform_(self.book.weight, -1 / 32, 1 / 32)

    def forward(self, given: Tensor) -> tuple[Tensor, Tensor]:
        codes = self.encoder(given).view(len(given), 4, 8)
        nearest = self.book(torch.cdist(codes, self.book.weight.expand(len(given), -1, -1)).argmin(-1))
        extra = F.mse_loss(nearest, codes.detach()) + 0.25 * F.mse_loss(codes, nearest.detach())
        return self.decoder((codes + (nearest - codes).detach()).flatten(1)), extra


@recipe("VQ-VAE", "van den Oord et al. 2017, MishaLaskin/vqvae: Adam 3e-4, commitment 0.25")
def vqvae() -> Training:
    def loss(net: Any, batch: Any) -> Tensor:
        made, extra = net(batch[0])
        return F.mse_loss(made, batch[0]) + extra

    return Training(Plain(Quantized(), loss, partial(optim.Adam, lr=3e-4)), loader(rows(), size=32), steps=400)


# Diffusion and flows


class Timed(nn.Module):
    """A perceptron that takes a point and a time, as sines."""

    def __init__(self, size: int, width: int = 128) -> None:
        super().__init__()
        self.layers = perceptron(size + 32, width, width, width, size, activation=nn.SiLU)

    def forward(self, points: Tensor, time: Tensor) -> Tensor:
        angles = time[:, None] * torch.exp(torch.arange(16) * (-math.log(10000) / 16))
        return self.layers(torch.cat([points, angles.sin(), angles.cos()], 1))  # type: ignore[no-any-return]  # a module gives Any


@recipe("DDPM", "huggingface.co/docs/diffusers tutorials/basic_training: AdamW 1e-4, 1000 steps of noise, clipped at 1")
def diffusion() -> Training:
    kept = (1 - torch.linspace(1e-4, 0.02, 1000)).cumprod(0)

    def loss(net: Any, batch: Any) -> Tensor:
        time, noise = torch.randint(1000, (len(batch[0]),)), torch.randn_like(batch[0])
        share = kept[time][:, None]
        return F.mse_loss(net(share.sqrt() * batch[0] + (1 - share).sqrt() * noise, time.float()), noise)

    module = Plain(Timed(64), loss, partial(optim.AdamW, lr=1e-4))
    return Training(module, loader(2 * rows() - 1, size=64), 400, {"gradient_clip_val": 1.0})


@recipe("flow matching", "atong01/conditional-flow-matching examples/2D_tutorials: Adam 1e-3")
def flow_matching() -> Training:
    def loss(net: Any, batch: Any) -> Tensor:
        noise, time = torch.randn_like(batch[0]), torch.rand(len(batch[0]))
        between = time[:, None] * batch[0] + (1 - time[:, None]) * noise
        return F.mse_loss(net(between, time), batch[0] - noise)

    return Training(Plain(Timed(2), loss, partial(optim.Adam, lr=1e-3)), loader(moons(), size=256), 300, falls=False)


@recipe("denoising score matching", "Vincent 2011, ermongroup/ncsn: Adam 1e-3")
def score_matching() -> Training:
    def loss(net: Any, batch: Any) -> Tensor:
        noise = torch.randn_like(batch[0])
        return (net(batch[0] + 0.3 * noise) + noise / 0.3).square().sum(-1).mean() / 2 * 0.09

    net = perceptron(2, 128, 128, 2, activation=nn.Softplus)
    return Training(Plain(net, loss, partial(optim.Adam, lr=1e-3)), loader(moons(), size=128), 300, falls=False)


class RealNVP(nn.Module):
    """Six couplings, each of which changes one coordinate by the other."""

    def __init__(self) -> None:
        super().__init__()
        self.couplings = nn.ModuleList(perceptron(1, 64, 64, 2) for _ in range(6))

    def forward(self, points: Tensor) -> tuple[Tensor, Tensor]:
        volume = torch.zeros(len(points))
        for coupling in self.couplings:
            kept, changed = points.flip(1).split(1, 1)
            scale, shift = coupling(kept).split(1, 1)
            points, volume = (
                torch.cat([kept, changed * scale.tanh().exp() + shift], 1),
                volume + scale.tanh().squeeze(1),
            )
        return points, volume


@recipe("RealNVP", "VincentStimper/normalizing-flows examples/real_nvp: Adam 5e-4, decay 1e-5")
def real_nvp() -> Training:
    def loss(net: Any, batch: Any) -> Tensor:
        points, volume = net(batch[0])
        return (points.square().sum(1) / 2 + math.log(2 * math.pi) - volume).mean()

    adam = partial(optim.Adam, lr=5e-4, weight_decay=1e-5)
    return Training(Plain(RealNVP(), loss, adam), loader(moons(), size=256), 400)


# Learning without labels


def two_views(images: Tensor) -> tuple[Tensor, Tensor]:
    """Shifted by up to a pixel, and noisy."""
    places = torch.randint(-1, 2, (4,)).tolist()
    first, second = images.roll(places[:2], (2, 3)), images.roll(places[2:], (2, 3))
    return first + 0.3 * torch.randn_like(first), second + 0.3 * torch.randn_like(second)


def encoder(width: int = 64) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, 1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, width),
    )


def projector(width: int = 64) -> nn.Sequential:
    layers = [nn.Linear(64, width, bias=False), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, width)]
    return nn.Sequential(*layers)


@recipe("SimCLR", "sthalles/SimCLR run.py: Adam 3e-4, decay 1e-4, temperature 0.07")
def simclr() -> Training:
    def loss(net: Any, batch: Any) -> Tensor:
        codes = F.normalize(net(torch.cat(two_views(batch[0]))), dim=1)
        alike = (codes @ codes.t() / 0.07).masked_fill(torch.eye(len(codes), dtype=torch.bool), -math.inf)
        half = len(batch[0])
        return F.cross_entropy(alike, torch.cat([torch.arange(half, 2 * half), torch.arange(half)]))

    net = nn.Sequential(encoder(), nn.ReLU(), nn.Linear(64, 32))
    adam = partial(optim.Adam, lr=3e-4, weight_decay=1e-4)
    return Training(Plain(net, loss, adam), loader(data.digits()[0], size=64))


class Siamese(nn.Module):
    """SimSiam: an encoder with a projector, and a predictor of the other view."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(encoder(), projector())
        self.predictor = nn.Sequential(
            nn.Linear(64, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(inplace=True), nn.Linear(16, 64)
        )


@recipe("SimSiam", "facebookresearch/simsiam main_simsiam.py: SGD 0.05 for 256 samples, momentum 0.9, decay 1e-4")
def simsiam() -> Training:
    def loss(net: Any, batch: Any) -> Tensor:
        codes = [net.encoder(view) for view in two_views(batch[0])]
        one, other = (net.predictor(code) for code in codes)
        alike = F.cosine_similarity(one, codes[1].detach()) + F.cosine_similarity(other, codes[0].detach())
        return -alike.mean() / 2

    sgd = partial(optim.SGD, lr=0.05 * 64 / 256, momentum=0.9, weight_decay=1e-4)
    return Training(Plain(Siamese(), loss, sgd), loader(data.digits()[0], size=64))


@recipe("Barlow Twins", "facebookresearch/barlowtwins main.py: lambda 0.0051; Adam as in its small versions")
def barlow_twins() -> Training:
    def loss(net: Any, batch: Any) -> Tensor:
        one, other = (F.batch_norm(net(view), None, None, training=True) for view in two_views(batch[0]))
        crossed = one.t() @ other / len(one)
        on = (crossed.diagonal() - 1).square().sum()
        return on + 0.0051 * (crossed.square().sum() - crossed.diagonal().square().sum())

    net = nn.Sequential(encoder(), projector())
    return Training(Plain(net, loss, partial(optim.Adam, lr=1e-3)), loader(data.digits()[0], size=64))


class Averaged(nn.Module):
    """BYOL: a Siamese net whose targets come from a moving average of its encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.online = Siamese()
        self.target = nn.Sequential(encoder(), projector()).requires_grad_(False)
        self.target.load_state_dict(self.online.encoder.state_dict())


class Byol(Plain):
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        with torch.no_grad():
            pairs = zip(self.net.target.parameters(), self.net.online.encoder.parameters(), strict=True)
            for slow, fast in pairs:
                slow.lerp_(fast, 0.01)


@recipe("BYOL", "lucidrains/byol-pytorch README: Adam 3e-4, an average by 0.99")
def byol() -> Training:
    def loss(net: Any, batch: Any) -> Tensor:
        views = two_views(batch[0])
        one, other = (net.online.predictor(net.online.encoder(view)) for view in views)
        with torch.no_grad():
            wanted = [net.target(view) for view in views]
        return 4 - 2 * (F.cosine_similarity(one, wanted[1]) + F.cosine_similarity(other, wanted[0])).mean()

    return Training(Byol(Averaged(), loss, partial(optim.Adam, lr=3e-4)), loader(data.digits()[0], size=64))


@recipe("siamese network", EXAMPLES.format("siamese_network/main.py: Adadelta 1.0, binary cross entropy"))
def siamese() -> Training:
    images, labels = data.digits()

    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder()
            self.head = nn.Sequential(nn.Linear(128, 64), nn.ReLU(inplace=True), nn.Linear(64, 1), nn.Sigmoid())

        def forward(self, given: Tensor) -> Tensor:
            return self.head(torch.cat([self.encoder(given[:, :1]), self.encoder(given[:, 1:])], 1)).squeeze(1)

    order = torch.randperm(len(images))
    half = torch.rand(len(images)) < 0.5  # of the pairs are made of the same digit
    partner = torch.stack(
        [torch.where(labels == labels[i])[0][i % 50] if half[i] else order[i] for i in range(len(images))]
    )
    pairs, same = torch.cat([images, images[partner]], 1), (labels == labels[partner]).float()
    module = Plain(Pairs(), supervised(F.binary_cross_entropy), partial(optim.Adadelta, lr=1.0))
    return Training(module, loader(pairs, same, size=64), steps=200)
