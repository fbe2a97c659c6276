"""Healthy trainings on points, fields, graphs and spots, as tutorials write them."""

import math
from typing import Any

import torch
from benchmarks.programs.steps import Learner, healthy
from benchmarks.programs.unseen.common import accuracy, closeness, mlp, r2
from benchmarks.programs.unseen.generators import ring
from benchmarks.programs.unseen.healthy import moons
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812  # the usual name
from torch.optim import Adam

Pair = tuple[Tensor, Tensor]


@healthy("flow matching of moons", "flow matching", 0.9)
class Matched(Learner):
    """The velocity of a straight way from noise to a point, at any time."""

    rate = 0.002
    steps = 800

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2))

    def batch(self) -> Tensor:
        return moons(256)

    def forward(self, points: Tensor, times: Tensor) -> Any:
        return self.net(torch.cat([points, times, (math.pi * times).sin(), (math.pi * times).cos()], 1))

    def training_step(self, points: Tensor, batch_idx: int) -> Tensor:
        noise, times = torch.randn_like(points), torch.rand(len(points), 1)
        return F.mse_loss(self(torch.lerp(noise, points, times), times), points - noise)

    def score(self) -> float:
        points = torch.randn(1000, 2)
        for step in range(20):
            points = points + self(points, torch.full((1000, 1), step / 20)) / 20
        return closeness(points, moons(1000))


@healthy("RealNVP of moons", "normalizing flow", 0.9)
class Couplings(Learner):
    """Six affine couplings, each of which keeps one coordinate, and gradients that are clipped."""

    steps = 600

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.parts = nn.ModuleList(mlp(1, 48, 2) for _ in range(6))

    def batch(self) -> Tensor:
        return moons(256)

    def training_step(self, points: Tensor, batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        volume = torch.zeros(len(points))
        for part in self.parts:
            kept, moved = points.unbind(1)
            scale, shift = part(kept.unsqueeze(1)).unbind(1)
            points = torch.stack([(moved - shift) * (-2 * scale.tanh()).exp(), kept], 1)
            volume = volume - 2 * scale.tanh()
        optimizer.zero_grad()
        self.manual_backward((points.square().sum(1) / 2 - volume).mean())
        self.clip_gradients(optimizer, gradient_clip_val=5.0, gradient_clip_algorithm="norm")
        optimizer.step()

    def score(self) -> float:
        points = torch.randn(1000, 2)
        for part in reversed(self.parts):
            moved, kept = points.unbind(1)
            scale, shift = part(kept.unsqueeze(1)).unbind(1)
            points = torch.stack([kept, moved * (2 * scale.tanh()).exp() + shift], 1)
        return closeness(points, moons(1000))


@healthy("hinge GAN with spectral norm", "GAN", 0.8)
class Hinge(Learner):
    """Points on a ring; each step is first one of the discriminator and then one of the generator."""

    steps = 500

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(4, 64), nn.BatchNorm1d(64), nn.ReLU(), mlp(64, 64, 2))
        norm = nn.utils.parametrizations.spectral_norm
        self.discriminator = nn.Sequential(
            norm(nn.Linear(2, 64)),
            nn.LeakyReLU(0.2),
            norm(nn.Linear(64, 64)),
            nn.LeakyReLU(0.2),
            norm(nn.Linear(64, 1)),
        )

    def configure_optimizers(self) -> Any:
        held = ((self.generator, 0.001), (self.discriminator, 0.004))
        return [Adam(part.parameters(), rate, betas=(0.0, 0.9)) for part, rate in held]

    def batch(self) -> Tensor:
        return ring(128)

    def training_step(self, points: Tensor, batch_idx: int) -> None:
        for_generator, for_discriminator = self.optimizers()
        self.toggle_optimizer(for_discriminator)
        fakes = self.generator(torch.randn(128, 4)).detach()
        loss = F.relu(1 - self.discriminator(points)).mean() + F.relu(1 + self.discriminator(fakes)).mean()
        self.descend(for_discriminator, loss)
        self.untoggle_optimizer(for_discriminator)
        self.toggle_optimizer(for_generator)
        self.descend(for_generator, -self.discriminator(self.generator(torch.randn(128, 4))).mean())
        self.untoggle_optimizer(for_generator)

    def score(self) -> float:
        return closeness(self.generator(torch.randn(1000, 4)), ring(1000))


@healthy("cycles between clouds", "GAN", 0.8)
class Cycles(Learner):
    """Two generators and two discriminators, by least squares, with cycles and identities."""

    steps = 500

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.there, self.back = mlp(2, 32, 2), mlp(2, 32, 2)
        self.judges = nn.ModuleList([mlp(2, 32, 1), mlp(2, 32, 1)])

    def configure_optimizers(self) -> Any:
        held = [*self.there.parameters(), *self.back.parameters()]
        return Adam(held, 0.001, betas=(0.5, 0.999)), Adam(self.judges.parameters(), 0.002, betas=(0.5, 0.999))

    def batch(self) -> Pair:
        """Points of a ring at the left, and of one that is larger at the right."""
        return ring(128) - torch.tensor([2.0, 0.0]), 1.5 * ring(128) + torch.tensor([2.0, 0.0])

    def training_step(self, batch: Pair, batch_idx: int) -> None:
        first, second = batch
        for_generators, for_judges = self.optimizers()
        to_second, to_first = self.there(first), self.back(second)
        loss = (self.judges[0](to_first) - 1).square().mean() + (self.judges[1](to_second) - 1).square().mean()
        loss = loss + 5 * (F.l1_loss(self.back(to_second), first) + F.l1_loss(self.there(to_first), second))
        loss = loss + 0.5 * (F.l1_loss(self.back(first), first) + F.l1_loss(self.there(second), second))
        self.descend(for_generators, loss)
        told = torch.zeros(())
        for judge, real, fake in zip(self.judges, batch, (to_first, to_second), strict=True):
            told = told + (judge(real) - 1).square().mean() + judge(fake.detach()).square().mean()
        self.descend(for_judges, told / 2)

    def score(self) -> float:
        first, second = map(torch.cat, zip(*[self.batch() for _ in range(8)], strict=True))
        return (closeness(self.there(first), second) + closeness(self.back(second), first)) / 2


@healthy("balanced experts", "mixture of experts", 0.8)
class Experts(Learner):
    """The best two of six experts for each sample, with noise in the router and a loss that balances them."""

    rate = 0.01
    steps = 500

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(2, 6)
        self.experts = nn.ModuleList(mlp(2, 16, 1) for _ in range(6))

    def batch(self) -> Pair:
        places = 4 * torch.rand(256, 2) - 2
        return places, (2 * places[:, :1]).sin() * places[:, 1:]

    def forward(self, places: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.router(places)
        best = (logits + (torch.randn_like(logits) / 6 if self.training else 0.0)).topk(2, 1).indices
        weights = logits.gather(1, best).softmax(1)
        outputs = torch.stack([expert(places) for expert in self.experts], 1).squeeze(2).gather(1, best)
        shares = F.one_hot(best, 6).float().sum(1).mean(0) / 2
        return (weights * outputs).sum(1, keepdim=True), 6 * (shares * logits.softmax(1).mean(0)).sum()

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        outputs, balance = self(batch[0])
        return F.mse_loss(outputs, batch[1]) + 0.01 * balance

    def score(self) -> float:
        places, wanted = self.batch()
        return r2(self(places)[0], wanted)


@healthy("MAML of sines", "meta-learning", 0.3)
class Adapting(Learner):
    """One inner step on ten points of a sine of any phase; the outer loss is that on ten others, after it."""

    rate = 0.003
    steps = 600

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(1, 40, 40, 1)

    def batch(self) -> Tensor:
        """Four tasks: a phase, and the places of 20 points."""
        return torch.cat([6.3 * torch.rand(4, 1), 10 * torch.rand(4, 20) - 5], 1).unsqueeze(2)

    def after(self, task: Tensor) -> Pair:
        """The outputs at the last ten points, and what they should be."""
        places, truth = task[1:], (task[1:] + task[0]).sin()
        held = dict(self.net.named_parameters())
        loss = F.mse_loss(functional_call(self.net, held, (places[:10],)), truth[:10])
        slopes = torch.autograd.grad(loss, [*held.values()], create_graph=True)
        held = {name: value - 0.1 * slope for (name, value), slope in zip(held.items(), slopes, strict=True)}
        return functional_call(self.net, held, (places[10:],)), truth[10:]

    def training_step(self, tasks: Tensor, batch_idx: int) -> Tensor:
        return torch.stack([F.mse_loss(*self.after(task)) for task in tasks]).mean()

    def score(self) -> float:
        """How much of new sines is explained after one step."""
        with torch.enable_grad():
            pairs = [self.after(task) for _ in range(25) for task in self.batch()]
        outputs, truth = (torch.cat(values).detach() for values in zip(*pairs, strict=True))
        return r2(outputs, truth)


@healthy("graph attention", "graphs", 0.85)
class Attending(Learner):
    """Nodes of four groups, of which a few have labels, and their numbers are noisy; one graph."""

    rate = 0.01
    steps = 150

    def __init__(self) -> None:
        super().__init__()
        self.groups = torch.arange(120) % 4
        same = self.groups.unsqueeze(1) == self.groups
        upper = (torch.rand(120, 120) < torch.where(same, 0.15, 0.015)).triu(1)
        self.edges = upper | upper.T | torch.eye(120, dtype=torch.bool)
        self.columns = F.one_hot(self.groups, 8) + 0.8 * torch.randn(120, 8)
        self.known = torch.arange(120) < 40
        self.first, self.second = nn.Linear(8, 32, bias=False), nn.Linear(32, 4, bias=False)
        self.pairs = nn.ParameterList([0.1 * torch.randn(2, width) for width in (32, 4)])
        self.drop = nn.Dropout(0.3)

    def configure_optimizers(self) -> Any:
        return Adam(self.parameters(), self.rate, weight_decay=5e-4)

    def batch(self) -> Tensor:
        return self.columns

    def attended(self, states: Tensor, pair: Tensor) -> Tensor:
        scores = F.leaky_relu((states @ pair[0]).unsqueeze(1) + states @ pair[1], 0.2)
        return self.drop(scores.masked_fill(~self.edges, -torch.inf).softmax(1)) @ states

    def forward(self, columns: Tensor) -> Any:
        states = F.elu(self.attended(self.first(self.drop(columns)), self.pairs[0]))
        return self.attended(self.second(self.drop(states)), self.pairs[1])

    def training_step(self, columns: Tensor, batch_idx: int) -> Tensor:
        return F.cross_entropy(self(columns)[self.known], self.groups[self.known])

    def score(self) -> float:
        return accuracy(self(self.columns)[~self.known], self.groups[~self.known])


@healthy("rays through a disc", "radiance field", 0.8)
class Rays(Learner):
    """A field of density and color on a plane, from what rays from around see; places are told by waves."""

    steps = 400

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(2 + 4 * 4, 64, 64, 2)

    def batch(self) -> tuple[Tensor, Tensor, Tensor]:
        """The places of 24 points on each ray, as far apart as they are, and the color that is seen."""
        angles, shifts = 6.3 * torch.rand(128, 1, 1), 2 * torch.rand(128, 1, 1) - 1
        ways = torch.cat([angles.cos(), angles.sin()], 2)
        along = (torch.arange(24) + torch.rand(128, 24)).unsqueeze(2) / 12 - 1
        places = along * ways + shifts * torch.cat([-ways[..., 1:], ways[..., :1]], 2)
        truth = 10.0 * ((places - torch.tensor([0.2, -0.1])).norm(dim=2) < 0.5), (3 * places[..., 0]).sin() / 2 + 0.5
        return places, torch.full((128, 24), 1 / 12), self.seen(*truth, torch.full((128, 24), 1 / 12))

    def seen(self, density: Tensor, color: Tensor, apart: Tensor) -> Tensor:
        alpha = 1 - (-density * apart).exp()
        through = F.pad((1 - alpha + 1e-10).cumprod(1)[:, :-1], (1, 0), value=1.0)
        return (through * alpha * color).sum(1)

    def forward(self, places: Tensor, apart: Tensor) -> Any:
        waves = [turn(2**level * places) for level in range(4) for turn in (torch.sin, torch.cos)]
        density, color = self.net(torch.cat([places, *waves], 2)).unbind(2)
        return self.seen(F.softplus(density), color.sigmoid(), apart)

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor], batch_idx: int) -> Tensor:
        return F.mse_loss(self(*batch[:2]), batch[2])

    def score(self) -> float:
        places, apart, wanted = self.batch()
        return r2(self(places, apart), wanted)


@healthy("an oscillator by its equation", "differential equation", 0.9)
class Oscillator(Learner):
    """u'' = -16 u, from u = 1 and u' = 0 at the start: three losses with weights of their own."""

    rate = 0.005
    steps = 1000

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
        nn.init.normal_(self.net[0].weight, std=3.0)  # type: ignore[arg-type]  # a parameter

    def batch(self) -> Tensor:
        return torch.cat([torch.zeros(1, 1), torch.rand(63, 1)])

    def training_step(self, times: Tensor, batch_idx: int) -> Tensor:
        times = times.clone().requires_grad_()
        values = self.net(times)
        slopes = torch.autograd.grad(values.sum(), times, create_graph=True)[0]
        bends = torch.autograd.grad(slopes.sum(), times, create_graph=True)[0]
        start = (values[0] - 1).square().sum() + 0.1 * slopes[0].square().sum()
        return 10 * start + 0.01 * (bends + 16 * values).square().mean()

    def score(self) -> float:
        times = torch.linspace(0, 1, 101).unsqueeze(1)
        return r2(self.net(times), (4 * times).cos())


@healthy("middles of spots", "detection", 0.8)
class Middles(Learner):
    """A map of where middles are, by a focal loss against bumps, and offsets where there is one, as in CenterNet."""

    rate = 0.005
    steps = 300

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 3, 1),
        )  # fmt: skip
        nn.init.constant_(self.net[-1].bias, -2.0)  # type: ignore[arg-type]  # a parameter

    def batch(self) -> Pair:
        """Pictures of 16x16 with two spots each, and the middles of these."""
        middles, places = 2 + 12 * torch.rand(32, 2, 2), torch.arange(16) + 0.5
        near = (-(places - middles.unsqueeze(3)).square() / 2).exp()
        pictures = (near[:, :, 1].unsqueeze(3) * near[:, :, 0].unsqueeze(2)).amax(1, keepdim=True)
        return pictures + 0.1 * torch.randn_like(pictures), middles / 2

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        pictures, middles = batch
        outputs, cells = self.net(pictures), middles.long()
        near = (-(torch.arange(8) - cells.unsqueeze(3)).square() / 1.0).exp()
        bumps = (near[:, :, 1].unsqueeze(3) * near[:, :, 0].unsqueeze(2)).amax(1)
        likely = outputs[:, 0].sigmoid().clamp(1e-4, 1 - 1e-4)
        is_middle = bumps == 1
        there = -((1 - likely).square() * likely.log())[is_middle].sum()
        elsewhere = -((1 - bumps).pow(4) * likely.square() * (1 - likely).log())[~is_middle].sum()
        rows = torch.arange(len(pictures)).unsqueeze(1)
        offsets = outputs[rows, 1:, cells[..., 1], cells[..., 0]]
        return (there + elsewhere) / is_middle.sum() + F.l1_loss(offsets, middles - cells)

    def score(self) -> float:
        """The share of the two likeliest cells of which each is the cell of a middle, or beside it."""
        pictures, middles = self.batch()
        maps = self.net(pictures)[:, 0]
        peaks = torch.where(F.max_pool2d(maps, 3, 1, 1) == maps, maps, -torch.inf).flatten(1).topk(2, 1).indices
        found = torch.stack([peaks % 8, peaks // 8], 2) + 0.5
        return (torch.cdist(found.float(), middles).amin(2) < 1).double().mean().item()
