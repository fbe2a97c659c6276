"""Healthy trainings on tokens, series, tables and choices, as tutorials write them."""

import math
from copy import deepcopy
from typing import Any

import torch
from benchmarks.programs.steps import Learner, healthy
from benchmarks.programs.unseen.agents import track
from benchmarks.programs.unseen.common import Reader, accuracy, mlp, r2
from sklearn.datasets import load_iris  # type: ignore[import-untyped]  # has no stubs
from torch import Tensor, nn
from torch.distributions import Categorical, Normal
from torch.nn import functional as F  # noqa: N812  # the usual name
from torch.optim import Adam, AdamW, RMSprop
from torch.optim.lr_scheduler import OneCycleLR

Pair = tuple[Tensor, Tensor]


@healthy("translation with nn.Transformer", "sequence to sequence", 0.9)
class Translated(Learner):
    """Numbers are written backwards, with each digit replaced, with teacher forcing; 0 pads, 11 starts, 12 ends."""

    rate = 0.002
    steps = 400

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(13, 32, padding_idx=0), nn.Embedding(7, 32)
        self.net = nn.Transformer(32, 4, 1, 1, 64, 0.0, batch_first=True)
        self.head = nn.Linear(32, 13)
        self.coded = torch.randperm(10)

    def configure_optimizers(self) -> Any:
        optimizer = Adam(self.parameters(), self.rate, betas=(0.9, 0.98))
        schedule = OneCycleLR(optimizer, 2 * self.rate, total_steps=max(self.steps, 10))
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    def batch(self) -> Pair:
        lengths, digits = torch.randint(2, 6, (64, 1)), torch.randint(10, (64, 5))
        kept = torch.arange(5) < lengths
        backwards = self.coded[digits.gather(1, (lengths - 1 - torch.arange(5)).clamp(min=0))]
        written = F.pad((backwards + 1) * kept, (1, 1))
        written[:, 0] = 11
        return (digits + 1) * kept, written.scatter(1, lengths + 1, 12)

    def embedded(self, tokens: Tensor) -> Tensor:
        return self.tokens(tokens) * math.sqrt(32) + self.places(torch.arange(tokens.shape[1]))

    def forward(self, source: Tensor, target: Tensor) -> Any:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        hidden = torch.zeros(source.shape).masked_fill(source == 0, -torch.inf)
        seen = self.net(
            self.embedded(source),
            self.embedded(target),
            tgt_mask=mask,
            src_key_padding_mask=hidden,
            memory_key_padding_mask=hidden,
        )
        return self.head(seen)

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        source, target = batch
        logits = self(source, target[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=0, label_smoothing=0.05)

    def score(self) -> float:
        source, target = self.batch()
        wanted = target[:, 1:]
        return accuracy(self(source, target[:, :-1])[wanted > 0], wanted[wanted > 0])


@healthy("letters with a carried state", "language model", 0.4)
class Carried(Learner):
    """An LSTM reads a description in 16 places at once; its state is carried from batch to batch, detached."""

    rate = 0.005
    steps = 300

    def __init__(self) -> None:
        super().__init__()
        text = load_iris().DESCR
        letters = sorted(set(text))
        rows = torch.tensor([letters.index(letter) for letter in text])
        self.text = rows[: len(rows) // 16 * 16].view(16, -1)
        self.tokens, self.rnn = nn.Embedding(len(letters), 32), nn.LSTM(32, 96, batch_first=True)
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(96, len(letters))
        self.at, self.state = 0, (torch.zeros(1, 16, 96), torch.zeros(1, 16, 96))

    def configure_optimizers(self) -> Any:
        return RMSprop(self.parameters(), self.rate)

    def batch(self) -> tuple[Tensor, bool]:
        """The next 20 letters of each place, and whether they are the first."""
        if self.at + 21 > self.text.shape[1]:
            self.at = 0
        part, is_first = self.text[:, self.at : self.at + 21], self.at == 0
        self.at += 20
        return part, is_first

    def forward(self, letters: Tensor, state: tuple[Tensor, Tensor]) -> Any:
        outputs, state = self.rnn(self.tokens(letters), state)
        return self.head(self.drop(outputs)), state

    def training_step(self, batch: tuple[Tensor, bool], batch_idx: int) -> Tensor:
        letters, is_first = batch
        if is_first:
            self.state = (torch.zeros(1, 16, 96), torch.zeros(1, 16, 96))
        logits, state = self(letters[:, :-1], self.state)
        self.state = (state[0].detach(), state[1].detach())
        return F.cross_entropy(logits.flatten(0, 1), letters[:, 1:].flatten())

    def score(self) -> float:
        logits, _ = self(self.text[:, :-1], (torch.zeros(1, 16, 96), torch.zeros(1, 16, 96)))
        return accuracy(logits, self.text[:, 1:])


class Causal(nn.Module):
    """A convolution over time that sees only back, by steps of some width, with a residual."""

    def __init__(self, inputs: int, outputs: int, step: int) -> None:
        super().__init__()
        self.step = step
        self.conv = nn.utils.parametrizations.weight_norm(nn.Conv1d(inputs, outputs, 3, dilation=step))
        self.through = nn.Conv1d(inputs, outputs, 1)

    def forward(self, series: Tensor) -> Any:
        return (self.conv(F.pad(series, (2 * self.step, 0))).relu() + self.through(series)).relu()


@healthy("TCN of two waves", "time series", 0.6)
class Forecast(Learner):
    """The next value of the sum of two waves, with noise, after the mean of the series is taken off."""

    steps = 300

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(Causal(1, 16, 1), Causal(16, 16, 2), Causal(16, 16, 4), nn.Conv1d(16, 1, 1))

    def batch(self) -> Tensor:
        paces, phases = 0.2 + torch.rand(2, 32, 1), 6.3 * torch.rand(2, 32, 1)
        series = torch.sin(paces * torch.arange(32) + phases).sum(0) + 0.1 * torch.randn(32, 32)
        return series + 3 * torch.randn(32, 1)

    def forward(self, series: Tensor) -> Any:
        means = series.mean(1, keepdim=True)
        return self.net((series - means).unsqueeze(1)).squeeze(1) + means

    def training_step(self, series: Tensor, batch_idx: int) -> Tensor:
        return F.huber_loss(self(series[:, :-1]), series[:, 1:])

    def score(self) -> float:
        """How much is explained of what the last value does not tell."""
        series = torch.cat([self.batch() for _ in range(16)])
        return r2(self(series[:, :-1])[:, -1:] - series[:, -2:-1], series[:, -1:] - series[:, -2:-1])


@healthy("three quantiles", "quantile regression", 0.9)
class Quantiles(Learner):
    """The 10th, 50th and 90th quantile of noise whose width depends on the place, by the pinball loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.shares = mlp(1, 64, 64, 3), torch.tensor([0.1, 0.5, 0.9])

    def batch(self) -> Pair:
        places = 2 * torch.rand(256, 1) - 1
        return places, (3 * places).sin() + (0.1 + places.square()) * torch.randn(256, 1)

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        errors = batch[1] - self.net(batch[0])
        return torch.max(self.shares * errors, (self.shares - 1) * errors).mean()

    def score(self) -> float:
        """1, less how far the shares below each quantile are from what they should be."""
        places, values = map(torch.cat, zip(*[self.batch() for _ in range(16)], strict=True))
        return 1 - ((values < self.net(places)).float().mean(0) - self.shares).abs().mean().item()


@healthy("ranks by CORAL", "ordinal regression", 0.8)
class Ranks(Learner):
    """Six ranks, by one score and five thresholds, each of which tells whether the rank is above it."""

    rate = 0.01

    def __init__(self) -> None:
        super().__init__()
        self.net, self.thresholds = mlp(5, 32, 1), nn.Parameter(torch.linspace(1, -1, 5))
        self.direction = torch.randn(5, 1)

    def batch(self) -> Pair:
        columns = torch.randn(128, 5)
        worth = (columns @ self.direction).squeeze(1) / self.direction.norm() + 0.1 * torch.randn(128)
        return columns, torch.bucketize(worth, torch.tensor([-1.2, -0.5, 0.0, 0.5, 1.2]))

    def forward(self, columns: Tensor) -> Any:
        return self.net(columns) + self.thresholds

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        above = (batch[1].unsqueeze(1) > torch.arange(5)).float()
        return F.binary_cross_entropy_with_logits(self(batch[0]), above)

    def score(self) -> float:
        """The share of ranks that are right."""
        columns, ranks = map(torch.cat, zip(*[self.batch() for _ in range(8)], strict=True))
        return ((self(columns) > 0).sum(1) == ranks).double().mean().item()


@healthy("rare events", "imbalanced classification", 0.8)
class Rare(Learner):
    """One of 30 samples is positive; the focal loss, and a bias that starts at how rare they are."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(6, 32, 1)
        nn.init.constant_(self.net[2].bias, -math.log(29))  # type: ignore[arg-type]  # a parameter

    def batch(self) -> Pair:
        labels = (torch.rand(256, 1) < 1 / 30).float()
        return torch.randn(256, 6) + labels, labels

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        logits = self.net(batch[0])
        loss = F.binary_cross_entropy_with_logits(logits, batch[1], reduction="none")
        right = (-loss).exp()
        weights = torch.where(batch[1] > 0, 0.75, 0.25)
        return (weights * (1 - right).square() * loss).sum() / batch[1].sum().clamp(min=1)

    def score(self) -> float:
        """The share of pairs of a positive and a negative sample that are in the right order."""
        columns, labels = map(torch.cat, zip(*[self.batch() for _ in range(8)], strict=True))
        logits = self.net(columns)
        return (logits[labels == 1].unsqueeze(1) > logits[labels == 0]).double().mean().item()


@healthy("skip-gram", "word vectors", 0.8)
class SkipGram(Learner):
    """Words of five topics, drawn by topic; five negative samples for each pair."""

    rate = 0.02

    def __init__(self) -> None:
        super().__init__()
        self.topics = torch.arange(60) % 5
        self.words, self.contexts = nn.Embedding(60, 16, sparse=True), nn.Embedding(60, 16, sparse=True)
        nn.init.uniform_(self.words.weight, -0.5 / 16, 0.5 / 16)
        nn.init.zeros_(self.contexts.weight)

    def configure_optimizers(self) -> Any:
        return torch.optim.SparseAdam([*self.parameters()], self.rate)

    def batch(self) -> tuple[Tensor, Tensor, Tensor]:
        words = torch.randint(60, (128,))
        contexts = (words % 5) + 5 * torch.randint(12, (128,))
        return (
            words,
            torch.where(torch.rand(128) < 0.8, contexts, torch.randint(60, (128,))),
            torch.randint(60, (128, 5)),
        )

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor], batch_idx: int) -> Tensor:
        words, contexts, others = self.words(batch[0]), self.contexts(batch[1]), self.contexts(batch[2])
        near = F.logsigmoid((words * contexts).sum(1))
        far = F.logsigmoid(-(others @ words.unsqueeze(2)).squeeze(2)).sum(1)
        return -(near + far).mean()

    def score(self) -> float:
        """The share of words whose nearest word is of the same topic."""
        vectors = F.normalize(self.words.weight, dim=1)
        nearest = (vectors @ vectors.T).fill_diagonal_(-torch.inf).argmax(1)
        return (self.topics[nearest] == self.topics).double().mean().item()


@healthy("pairwise recommendation", "recommendation", 0.8)
class Recommended(Learner):
    """Factors of 50 users and 60 things: what a user likes is to be above what is not known to be liked."""

    rate = 0.01

    def __init__(self) -> None:
        super().__init__()
        tastes, kinds = torch.randn(50, 3), torch.randn(60, 3)
        self.liked = (tastes @ kinds.T).argsort(1).argsort(1) >= 45
        self.shown = self.liked & (torch.rand(50, 60) < 0.7)
        self.users, self.things, self.bias = nn.Embedding(50, 8), nn.Embedding(60, 8), nn.Embedding(60, 1)
        for table in (self.users, self.things, self.bias):
            nn.init.normal_(table.weight, std=0.1)

    def configure_optimizers(self) -> Any:
        return AdamW(self.parameters(), self.rate, weight_decay=0.1)

    def batch(self) -> tuple[Tensor, Tensor, Tensor]:
        pairs = self.shown.nonzero()
        users, liked = pairs[torch.randint(len(pairs), (256,))].unbind(1)
        others = torch.multinomial((~self.shown).float()[users], 1).squeeze(1)
        return users, liked, others

    def forward(self, users: Tensor, things: Tensor) -> Any:
        return (self.users(users) * self.things(things)).sum(-1) + self.bias(things).squeeze(-1)

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor], batch_idx: int) -> Tensor:
        users, liked, others = batch
        return -F.logsigmoid(self(users, liked) - self(users, others)).mean()

    def score(self) -> float:
        """The share of pairs of a liked thing that was not shown and one that is not liked in the right order."""
        scores = self(torch.arange(50).unsqueeze(1), torch.arange(60).expand(50, -1))
        hidden, others = self.liked & ~self.shown, ~self.liked
        shares = [
            (row[unseen].unsqueeze(1) > row[bad]).double().mean()
            for row, unseen, bad in zip(scores, hidden, others, strict=True)
            if unseen.any()
        ]
        return torch.stack(shares).mean().item()


@healthy("sums of sets", "sets", 0.9)
class Sets(Learner):
    """The sum of digits, of which each is seen as a row of noise and its mark; sets have a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.all = mlp(12, 64, 16), mlp(16, 64, 1)

    def batch(self) -> tuple[Tensor, Tensor, Tensor]:
        digits, kept = torch.randint(10, (64, 6)), torch.arange(6) < torch.randint(2, 7, (64, 1))
        marks = torch.cat([F.one_hot(digits, 10).float(), torch.randn(64, 6, 2)], 2)
        return marks, kept.float(), (digits * kept).sum(1, keepdim=True) / 10

    def forward(self, marks: Tensor, kept: Tensor) -> Any:
        return self.all((self.each(marks) * kept.unsqueeze(2)).sum(1))

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor], batch_idx: int) -> Tensor:
        return F.smooth_l1_loss(self(*batch[:2]), batch[2])

    def score(self) -> float:
        marks, kept, sums = self.batch()
        return r2(self(marks, kept), sums)


@healthy("preferences", "preference optimization", 0.8)
class Preferred(Learner):
    """DPO: of two answers of four tokens, the one with more even tokens is preferred; the reference is frozen."""

    rate = 0.001
    steps = 250

    def __init__(self) -> None:
        super().__init__()
        self.policy = Reader(10, 8)
        self.reference = deepcopy(self.policy).requires_grad_(False)

    def batch(self) -> Pair:
        answers = torch.cat([torch.randint(10, (2, 64, 2))[:1].expand(2, -1, -1), torch.randint(10, (2, 64, 4))], 2)
        even = (answers[..., 2:] % 2 == 0).sum(2)
        better = (even[1] > even[0]).view(1, -1, 1)
        chosen, rejected = torch.where(better, answers.flip(0), answers)
        kept = even[0] != even[1]
        return chosen[kept], rejected[kept]

    def likely(self, net: nn.Module, answers: Tensor) -> Tensor:
        logs = net(answers[:, :-1]).log_softmax(2)
        return logs.gather(2, answers[:, 1:].unsqueeze(2)).squeeze(2)[:, 1:].sum(1)

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        now = [self.likely(self.policy, answers) for answers in batch]
        with torch.no_grad():
            before = [self.likely(self.reference, answers) for answers in batch]
        return -F.logsigmoid(0.5 * ((now[0] - before[0]) - (now[1] - before[1]))).mean()

    def score(self) -> float:
        """The share of pairs in which the preferred answer has become more likely than the other."""
        chosen, rejected = map(torch.cat, zip(*[self.batch() for _ in range(8)], strict=True))
        gains = [
            self.likely(self.policy, answers) - self.likely(self.reference, answers) for answers in (chosen, rejected)
        ]
        return (gains[0] > gains[1]).double().mean().item()


@healthy("PPO in a corridor", "PPO", 0.9)
class Clipped(Learner):
    """Sixteen agents walk in nine rooms; generalized advantages, four passes over each rollout, clipped gradients."""

    steps = 80

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.policy, self.value = mlp(9, 32, 3), mlp(9, 32, 1)
        self.rooms = torch.zeros(16, dtype=torch.long)

    def batch(self) -> Tensor:
        """What chance has in store for the resets."""
        return torch.randint(8, (24, 16))

    def rollout(self, resets: Tensor) -> tuple[Tensor, ...]:
        kept = []
        for reset in resets:
            choices = Categorical(logits=self.policy(F.one_hot(self.rooms, 9).float()))
            actions = choices.sample()
            after = (self.rooms + actions - 1).clamp(min=0)
            ended = after == 8
            kept.append((self.rooms, actions, choices.log_prob(actions), ended.float(), ended.float() - 0.05))
            self.rooms = torch.where(ended, reset, after)
        return tuple(torch.stack(values) for values in zip(*kept, strict=True))

    def training_step(self, resets: Tensor, batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        with torch.no_grad():
            rooms, actions, before, ended, rewards = self.rollout(resets)
            all_rooms = torch.cat([rooms, self.rooms.unsqueeze(0)])
            values = self.value(F.one_hot(all_rooms, 9).float()).squeeze(2)
            gains, last = torch.zeros_like(rewards), torch.zeros(16)
            for step in reversed(range(len(rewards))):
                delta = rewards[step] + 0.95 * (1 - ended[step]) * values[step + 1] - values[step]
                gains[step] = last = delta + 0.95 * 0.9 * (1 - ended[step]) * last
            returns, gains = gains + values[:-1], (gains - gains.mean()) / (gains.std() + 1e-8)
        for order in torch.randperm(rooms.numel()).repeat(4).split(96):
            seen = F.one_hot(rooms.flatten()[order], 9).float()
            choices, gain = Categorical(logits=self.policy(seen)), gains.flatten()[order]
            ratio = (choices.log_prob(actions.flatten()[order]) - before.flatten()[order]).exp()
            loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean() - 0.01 * choices.entropy().mean()
            loss = loss + 0.5 * F.mse_loss(self.value(seen).squeeze(1), returns.flatten()[order])
            optimizer.zero_grad()
            self.manual_backward(loss)
            self.clip_gradients(optimizer, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
            optimizer.step()

    def score(self) -> float:
        """The share of rooms from which the likeliest move is to the right."""
        return (self.policy(torch.eye(9)[:8]).argmax(1) == 2).double().mean().item()


@healthy("soft actor-critic", "actor-critic", 0.8)
class Soft(Learner):
    """Two critics and a temperature that is learned, on a point that is to get to the middle of a line."""

    steps = 500

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.actor, self.critics = mlp(1, 32, 2), nn.ModuleList(mlp(2, 64, 64, 1) for _ in range(2))
        self.targets = deepcopy(self.critics).requires_grad_(False)
        self.log_alpha = nn.Parameter(torch.tensor(-2.0))

    def configure_optimizers(self) -> Any:
        held = (self.actor.parameters(), self.critics.parameters(), [self.log_alpha])
        return [Adam(part, self.rate) for part in held]

    def batch(self) -> tuple[Tensor, ...]:
        states, actions = (2 * torch.rand(2, 128, 1) - 1).unbind(0)
        after = (states + 0.3 * actions).clamp(-1, 1)
        return states, actions, after, -after.abs()

    def drawn(self, states: Tensor) -> Pair:
        means, logs = self.actor(states).chunk(2, 1)
        choices = Normal(means, logs.clamp(-5, 1).exp())
        raw = choices.rsample()
        logs = choices.log_prob(raw) - 2 * (math.log(2) - raw - F.softplus(-2 * raw))
        return raw.tanh(), logs

    def training_step(self, batch: tuple[Tensor, ...], batch_idx: int) -> None:
        states, actions, after, rewards = batch
        for_actor, for_critics, for_alpha = self.optimizers()
        alpha = self.log_alpha.exp().detach()
        with torch.no_grad():
            next_actions, logs = self.drawn(after)
            inputs = torch.cat([after, next_actions], 1)
            wanted = rewards + 0.9 * (torch.min(*(critic(inputs) for critic in self.targets)) - alpha * logs)
        inputs = torch.cat([states, actions], 1)
        self.descend(for_critics, torch.stack([F.mse_loss(critic(inputs), wanted) for critic in self.critics]).sum())
        self.critics.requires_grad_(False)
        actions, logs = self.drawn(states)
        inputs = torch.cat([states, actions], 1)
        self.descend(for_actor, (alpha * logs - torch.min(*(critic(inputs) for critic in self.critics))).mean())
        self.critics.requires_grad_(True)
        self.descend(for_alpha, -(self.log_alpha * (logs.detach() - 1)).mean())
        track(self.critics, self.targets, 0.05)

    def score(self) -> float:
        """1, less how far from the middle points are after six moves."""
        states = torch.linspace(-1, 1, 101).unsqueeze(1)
        for _ in range(6):
            states = (states + 0.3 * self.actor(states)[:, :1].tanh()).clamp(-1, 1)
        return 1 - states.abs().mean().item()
