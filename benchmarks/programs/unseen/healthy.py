"""Healthy trainings of the same kinds, as tutorials write them."""

import math
from copy import deepcopy
from functools import cache
from typing import Any

import torch
from benchmarks.programs.parts import digits
from benchmarks.programs.steps import Learner, healthy
from benchmarks.programs.unseen.agents import track
from benchmarks.programs.unseen.common import Reader, accuracy, closeness, mlp
from benchmarks.programs.unseen.sequences import read_off, spoken
from sklearn.datasets import load_iris, make_moons  # type: ignore[import-untyped]  # has no stubs
from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # the usual name
from torch.optim import Adam, AdamW

Pair = tuple[Tensor, Tensor]


@cache
def flat_digits() -> Pair:
    images, labels = digits(8)
    return images.flatten(1) / 255, labels


def some_digits(count: int) -> Pair:
    images, labels = flat_digits()
    chosen = torch.randint(len(images), (count,))
    return images[chosen], labels[chosen]


def moons(count: int) -> Tensor:
    points, _ = make_moons(count, noise=0.05, random_state=int(torch.randint(1 << 30, ())))
    return torch.tensor(points - [0.5, 0.25], dtype=torch.float32)


def nearest_accuracy(embed: Any) -> float:
    """The share of digits whose nearest neighbor, of 400, is the same digit."""
    images, labels = flat_digits()
    embedded = F.normalize(embed(images[:400]), dim=1)
    similar = (embedded @ embedded.T).fill_diagonal_(-torch.inf)
    return (labels[:400][similar.argmax(1)] == labels[:400]).double().mean().item()


@healthy("GPT, tied", "language model", 0.5)
class TiedModel(Learner):
    """Characters of a description, with the embedding and the head tied."""

    def __init__(self) -> None:
        super().__init__()
        text = load_iris().DESCR
        letters = sorted(set(text))
        self.text = torch.tensor([letters.index(letter) for letter in text])
        self.net = Reader(len(letters), 32, width=48, depth=2)
        for table in (self.net.tokens, self.net.places):
            nn.init.normal_(table.weight, std=0.1)
        self.net.head.weight = self.net.tokens.weight

    def configure_optimizers(self) -> Any:
        return AdamW(self.parameters(), 0.003, weight_decay=0.01)

    def batch(self) -> Tensor:
        starts = torch.randint(len(self.text) - 32, (32, 1))
        return self.text[starts + torch.arange(33).clamp(max=32)]

    def training_step(self, tokens: Tensor, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.net(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    def score(self) -> float:
        tokens = self.batch()
        return accuracy(self.net(tokens[:, :-1]), tokens[:, 1:])


@healthy("masked tokens", "language model", 0.8)
class Masked(Learner):
    """BERT's loss on tokens that go up by a pace; the last token is the mask."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Reader(12, 10, causal=False, depth=2)

    def batch(self) -> tuple[Tensor, Tensor, Tensor]:
        tokens = (torch.randint(11, (64, 1)) + torch.randint(1, 4, (64, 1)) * torch.arange(10)) % 11
        hidden = torch.rand(64, 10) < 0.2
        return tokens.masked_fill(hidden, 11), tokens.masked_fill(~hidden, -100), tokens

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor], batch_idx: int) -> Tensor:
        return F.cross_entropy(self.net(batch[0]).flatten(0, 1), batch[1].flatten(), ignore_index=-100)

    def score(self) -> float:
        seen, wanted, tokens = self.batch()
        return accuracy(self.net(seen)[wanted >= 0], tokens[wanted >= 0])


@healthy("sorting with attention", "sequence to sequence", 0.8)
class Sorting(Learner):
    """A GRU reads digits and another, with attention and teacher forcing, writes them sorted; 0 pads."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 32, padding_idx=0)
        self.encoder, self.decoder = nn.GRU(32, 64, batch_first=True), nn.GRU(32, 64, batch_first=True)
        self.head = mlp(128, 64, 11)

    def batch(self) -> Pair:
        tokens = torch.randint(1, 10, (64, 6)) * (torch.arange(6) < torch.randint(3, 7, (64, 1)))
        ordered = tokens.masked_fill(tokens == 0, 99).sort(1).values
        return tokens, ordered.masked_fill(ordered == 99, 0)

    def forward(self, tokens: Tensor, ordered: Tensor) -> Any:
        read, state = self.encoder(self.tokens(tokens))
        written, _ = self.decoder(self.tokens(F.pad(ordered[:, :-1], (1, 0), value=10)), state)
        weights = (written @ read.transpose(1, 2) / 8).masked_fill((tokens == 0).unsqueeze(1), -torch.inf).softmax(2)
        return self.head(torch.cat([written, weights @ read], 2))

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        return F.cross_entropy(self(*batch).flatten(0, 1), batch[1].flatten(), ignore_index=0)

    def score(self) -> float:
        tokens, ordered = self.batch()
        return accuracy(self(tokens, ordered)[ordered > 0], ordered[ordered > 0])


@healthy("CTC with a GRU", "CTC", 0.8)
class Spoken(Learner):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(6, 32, batch_first=True, bidirectional=True), nn.Linear(64, 6)

    def batch(self) -> Pair:
        return spoken(32)

    def forward(self, frames: Tensor) -> Any:
        return self.head(self.rnn(frames)[0])

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        likely = self(batch[0]).log_softmax(2).transpose(0, 1)
        return F.ctc_loss(likely, batch[1], torch.full((32,), 16), torch.full((32,), 3), zero_infinity=True)

    def score(self) -> float:
        frames, sounds = spoken(256)
        return sum(a == b for a, b in zip(read_off(self(frames)), sounds.tolist(), strict=True)) / 256


@healthy("REINFORCE with a baseline", "policy gradient", 0.8)
class Reinforced(Learner):
    """One choice of four; the baseline is detached, and entropy is rewarded."""

    def __init__(self) -> None:
        super().__init__()
        self.right = mlp(4, 16, 4).requires_grad_(False)
        self.body, self.policy, self.value = mlp(4, 64), nn.Linear(64, 4), nn.Linear(64, 1)

    def batch(self) -> Tensor:
        return torch.randn(64, 4)

    def training_step(self, states: Tensor, batch_idx: int) -> Tensor:
        seen = self.body(states).relu()
        choices = torch.distributions.Categorical(logits=self.policy(seen))
        actions = choices.sample()
        rewards, values = (self.right(states).argmax(1) == actions).float(), self.value(seen).squeeze(1)
        policy_loss = -((rewards - values.detach()) * choices.log_prob(actions)).mean()
        return policy_loss + F.mse_loss(values, rewards) - 0.01 * choices.entropy().mean()

    def score(self) -> float:
        states = torch.randn(512, 4)
        return accuracy(self.policy(self.body(states).relu()), self.right(states).argmax(1))


@healthy("double DQN", "Q-learning", 0.9)
class Doubled(Learner):
    """A grid of 4x4 with the goal in a corner; the target network follows slowly."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(16, 64, 4)
        self.target = deepcopy(self.net).requires_grad_(False)

    def batch(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        places, actions = torch.randint(15, (64,)), torch.randint(4, (64,))
        moves = torch.tensor([[1, 0], [-1, 0], [0, 1], [0, -1]])[actions]
        after = (torch.stack([places // 4, places % 4], 1) + moves).clamp(0, 3) @ torch.tensor([4, 1])
        return places, actions, after, (after == 15).float()

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor, Tensor], batch_idx: int) -> Tensor:
        places, actions, after, ended = batch
        track(self.net, self.target, 0.05)
        seen, next_seen = F.one_hot(places, 16).float(), F.one_hot(after, 16).float()
        with torch.no_grad():
            best = self.net(next_seen).argmax(1, keepdim=True)
            wanted = ended + 0.9 * (1 - ended) * self.target(next_seen).gather(1, best).squeeze(1)
        return F.smooth_l1_loss(self.net(seen).gather(1, actions.unsqueeze(1)).squeeze(1), wanted)

    def score(self) -> float:
        """The share of places from which the best action comes nearer to the goal."""
        places = torch.arange(15)
        best = self.net(F.one_hot(places, 16).float()).argmax(1)
        return (
            torch.where(places >= 12, best == 2, torch.where(places % 4 == 3, best == 0, best % 2 == 0))
            .double()
            .mean()
            .item()
        )


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


@healthy("VAE of digits", "VAE", 0.5)
class Variational(Learner):
    """Both terms are summed over pixels and codes, and averaged over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(64, 128, 32), mlp(16, 128, 64)

    def batch(self) -> Tensor:
        return some_digits(64)[0]

    def training_step(self, images: Tensor, batch_idx: int) -> Tensor:
        means, logs = self.encoder(images).chunk(2, 1)
        outputs = self.decoder(means + (logs / 2).exp() * torch.randn_like(means))
        error = F.binary_cross_entropy_with_logits(outputs, images, reduction="sum")
        divergence = (means.square() + logs.exp() - 1 - logs).sum() / 2
        return (error + divergence) / len(images)

    def score(self) -> float:
        """The share of the variance of pixels that is explained."""
        images = flat_digits()[0]
        outputs = self.decoder(self.encoder(images)[:, :16]).sigmoid()
        return 1 - ((outputs - images).square().mean() / images.var(0).mean()).item()


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


@healthy("distilled digits", "distillation", 0.85)
class Distilled(Learner):
    """A logistic regression teaches a network of two layers, at a temperature of 4."""

    def __init__(self) -> None:
        super().__init__()
        images, labels = flat_digits()
        teacher = LogisticRegression(max_iter=200).fit(images.numpy(), labels.numpy())
        self.teacher = nn.Linear(64, 10).requires_grad_(False)
        self.teacher.weight.copy_(torch.tensor(teacher.coef_))
        self.teacher.bias.copy_(torch.tensor(teacher.intercept_))
        self.student = mlp(64, 32, 10)

    def batch(self) -> Pair:
        return some_digits(64)

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        images, labels = batch
        with torch.no_grad():
            soft = (self.teacher(images) / 4).log_softmax(1)
        logits = self.student(images)
        divergence = F.kl_div((logits / 4).log_softmax(1), soft, reduction="batchmean", log_target=True)
        return 0.7 * 16 * divergence + 0.3 * F.cross_entropy(logits, labels)

    def score(self) -> float:
        images, labels = flat_digits()
        return accuracy(self.student(images), labels)


@healthy("SimCLR of digits", "contrastive", 0.8)
class Contrastive(Learner):
    """Views differ in brightness and noise; NT-Xent over both views, without each view itself."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.projector = mlp(64, 64, 32), mlp(32, 32, 16)

    def batch(self) -> Pair:
        images, _ = some_digits(64)
        first, second = ((0.7 + 0.6 * torch.rand(64, 1)) * images + 0.1 * torch.randn(64, 64) for _ in "12")
        return first, second

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        views = F.normalize(self.projector(self.encoder(torch.cat(batch)).relu()), dim=1)
        similar = (views @ views.T / 0.5).masked_fill(torch.eye(128, dtype=torch.bool), -torch.inf)
        return F.cross_entropy(similar, torch.arange(128).roll(64))

    def score(self) -> float:
        return nearest_accuracy(self.encoder)


@healthy("triplets of digits", "metric learning", 0.9)
class Triplets(Learner):
    """The hardest positive and negative of each image in its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(64, 64, 16)

    def batch(self) -> Pair:
        return some_digits(64)

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        images, labels = batch
        distances = torch.cdist(*[F.normalize(self.net(images), dim=1)] * 2)
        same = labels.unsqueeze(0) == labels.unsqueeze(1)
        farthest = distances.masked_fill(~same, 0.0).max(1).values
        nearest = distances.masked_fill(same, torch.inf).min(1).values
        return F.relu(farthest - nearest + 0.2).mean()

    def score(self) -> float:
        return nearest_accuracy(self.net)


@healthy("BYOL of digits", "averaged teacher", 0.8)
class Bootstrapped(Learner):
    """A predictor on one side, an averaged copy without gradients on the other."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 16))
        self.predictor = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16))
        self.target = deepcopy(self.net).requires_grad_(False)

    def batch(self) -> Pair:
        images, _ = some_digits(64)
        return images + 0.3 * torch.randn(64, 64), images + 0.3 * torch.randn(64, 64)

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        loss = torch.zeros(())
        for first, second in (batch, batch[::-1]):
            with torch.no_grad():
                wanted = self.target(second)
            loss = loss + 2 - 2 * F.cosine_similarity(self.predictor(self.net(first)), wanted).mean()
        track(self.net, self.target, 0.01)
        return loss

    def score(self) -> float:
        """The share of noisy images whose nearest neighbor, of the other 399, is the same digit."""
        return nearest_accuracy(lambda images: self.net(images + 0.3 * torch.randn_like(images)))


@healthy("segments of digits", "segmentation", 0.85)
class Segments(Learner):
    """The ink of noisy digits, by cross entropy and dice, with a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.low = nn.Sequential(
            nn.MaxPool2d(2), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Upsample(scale_factor=2)
        )
        self.up = nn.Conv2d(32, 1, 3, padding=1)

    def batch(self) -> Pair:
        images = some_digits(64)[0].view(-1, 1, 8, 8)
        return images + 0.2 * torch.randn_like(images), (images > 0.5).float()

    def forward(self, images: Tensor) -> Any:
        high = self.down(images)
        return self.up(torch.cat([high, self.low(high)], 1))

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        logits = self(batch[0])
        likely, ink = logits.sigmoid().flatten(1), batch[1].flatten(1)
        dice = (2 * (likely * ink).sum(1) + 1) / (likely.sum(1) + ink.sum(1) + 1)
        return F.binary_cross_entropy_with_logits(logits, batch[1]) + (1 - dice).mean()

    def score(self) -> float:
        images, ink = self.batch()
        found = self(images) > 0
        return (2 * (found * ink).sum() / (found.sum() + ink.sum())).item()


@healthy("classes of graphs", "graphs", 0.85)
class Graphs(Learner):
    """Whether a graph has a node with four edges or more, of normalized dense matrices with self loops."""

    steps = 500

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 32), nn.Linear(32, 32)])
        self.head = mlp(32, 32, 2)

    def batch(self) -> tuple[Tensor, Tensor, Tensor]:
        upper = (torch.rand(64, 8, 8) < 0.3).float().triu(1)
        edges = upper + upper.transpose(1, 2)
        busy = edges.sum(2) >= 4
        return edges, torch.stack([edges.sum(2) / 4, torch.ones(64, 8)], 2), busy.any(1).long()

    def forward(self, edges: Tensor, states: Tensor) -> Any:
        looped = edges + torch.eye(8)
        root = looped.sum(2, keepdim=True).rsqrt()
        for layer in self.layers:
            states = (root * looped * root.transpose(1, 2) @ layer(states)).relu()
        return self.head(states.amax(1))

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor], batch_idx: int) -> Tensor:
        return F.cross_entropy(self(*batch[:2]), batch[2])

    def score(self) -> float:
        edges, states, labels = self.batch()
        return accuracy(self(edges, states), labels)


@healthy("accumulated digits", "accumulated gradients", 0.9)
class Accumulated(Learner):
    """Four parts of a batch for each step, clipped; a schedule that falls to 0."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.net = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 10))

    def configure_optimizers(self) -> Any:
        optimizer = AdamW(self.parameters(), 0.005)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.steps // 4)]

    def batch(self) -> Pair:
        return some_digits(16)

    def training_step(self, batch: Pair, batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        schedule: Any = self.lr_schedulers()
        self.manual_backward(F.cross_entropy(self.net(batch[0]), batch[1]) / 4)
        if batch_idx % 4 == 3:
            self.clip_gradients(optimizer, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()

    def score(self) -> float:
        images, labels = flat_digits()
        return accuracy(self.net(images), labels)


@healthy("two tasks with learned weights", "multi-task", 0.8)
class TwoTasks(Learner):
    """Which digit it is and how much ink it has; the weights of both losses are learned."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.which, self.ink = mlp(64, 64), nn.Linear(64, 10), nn.Linear(64, 1)
        self.logs = nn.Parameter(torch.zeros(2))

    def batch(self) -> Pair:
        return some_digits(64)

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        seen = self.body(batch[0]).relu()
        ink = F.mse_loss(self.ink(seen).squeeze(1), batch[0].mean(1))
        losses = torch.stack([F.cross_entropy(self.which(seen), batch[1]), ink])
        return ((-self.logs).exp() * losses + self.logs / 2).sum()

    def score(self) -> float:
        images, labels = flat_digits()
        return accuracy(self.which(self.body(images).relu()), labels)
