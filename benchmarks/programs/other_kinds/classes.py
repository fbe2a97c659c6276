"""Classes, ranks, words and recommendations."""

import math
from typing import Any

import torch
from benchmarks.programs.other_kinds.common import Classes, Pair, flat_digits, mlp, some_digits
from benchmarks.programs.parts import accuracy, digits, r2
from benchmarks.programs.program import ISSUE, Learner, case, healthy
from torch import Tensor, nn
from torch.distributions import Beta
from torch.nn import functional as F  # noqa: N812  # the usual name
from torch.optim import SGD, Adam, AdamW
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn


class Digits(Learner):
    """Digits of 8x8 as rows of numbers from 0 to 1, of which every fourth is not trained on."""

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        images, labels = digits(8)
        kept = torch.arange(len(labels)) % 4 == 0
        self.images, self.labels = images[~kept].flatten(1) / 255, labels[~kept]
        self.test: Pair = images[kept].flatten(1) / 255, labels[kept]
        self.net = mlp(64, 64, 10)

    def batch(self) -> Pair:
        chosen = torch.randint(len(self.images), (64,))
        return self.images[chosen], self.labels[chosen]

    def score(self) -> float:
        """The share of right classes."""
        return accuracy(self.net(self.test[0]), self.test[1])


@case(
    "CGES 1",
    ISSUE.format("jaehong31/CGES", 1),
    kind="classification",
    fault="The network ends with a softmax, and softmax_cross_entropy_with_logits has its own.",
    fix="The network gives its outputs before the softmax.",
    port="Digits of 8x8 and two layers in place of MNIST and convolutions; torch in place of TensorFlow; 300 steps of"
    " SGD.",
    words=("softmax", "logit", "probabilit", "twice", "small gradient", "plateau"),
)
class SoftmaxTwice(Digits):
    rate = 0.1
    steps = 300

    def configure_optimizers(self) -> Any:
        return SGD(self.parameters(), self.rate)

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        outputs = self.net(batch[0])
        return F.cross_entropy(outputs if self.fixed else outputs.softmax(1), batch[1])  # fault


@case(
    "VMT 1",
    ISSUE.format("xudonmao/VMT", 1),
    kind="mixup",
    fault="Images and targets are each shuffled anew, and so mixed with those of different partners.",
    fix="Both have the same order.",
    port="Digits of 8x8, and labels in place of the network's own predictions; torch in place of TensorFlow.",
    words=("label", "shuffl", "mismatch", "order", "target", "noise", "plateau"),
)
class OtherPartner(Digits):
    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        images, targets = batch[0], F.one_hot(batch[1], 10).float()
        share = Beta(1.0, 1.0).sample((len(images), 1))
        order = torch.randperm(len(images))
        other = order if self.fixed else torch.randperm(len(images))  # fault
        logits = self.net(share * images + (1 - share) * images[order])
        return F.cross_entropy(logits, share * targets + (1 - share) * targets[other])

    def score(self) -> float:
        """The mean probability of the right class."""
        return self.net(self.test[0]).softmax(1).gather(1, self.test[1].unsqueeze(1)).mean().item()


@case(
    "multilogue-net 21",
    ISSUE.format("amanshenoy/multilogue-net", 21),
    kind="imbalanced classification",
    fault="The weights of the two classes are exchanged.",
    fix="They are flipped: the rare class has the greater one.",
    port="Two normal clouds, of which one has 8 % of the samples, in place of speech, video and text.",
    words=("class", "weight", "imbalanc", "rare", "majority", "constant", "collapse"),
)
class WeightsExchanged(Learner):
    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.net = mlp(6, 32, 2)
        weights = [1 / 0.9184, 1 / 0.0816] if fixed else [1 / 0.0816, 1 / 0.9184]  # fault
        self.weights = torch.tensor(weights)

    def batch(self) -> Pair:
        labels = (torch.rand(128) < 0.0816).long()
        return torch.randn(128, 6) + labels.unsqueeze(1) * 0.8, labels

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1], self.weights)

    def score(self) -> float:
        """The mean over both classes of the share that is right."""
        columns, labels = map(torch.cat, zip(*[self.batch() for _ in range(32)], strict=True))
        right = self.net(columns).argmax(1) == labels
        return sum(right[labels == kind].double().mean().item() for kind in (0, 1)) / 2


@case(
    "HVPNeT 5",
    ISSUE.format("zjunlp/HVPNeT", 5),
    kind="tagging",
    fault="A group of parameters, of the last layer, is made and not appended to the groups of the optimizer.",
    fix="parameters.append(params).",
    port="Tags of tokens that depend on those beside them, with an encoder that has been trained on half of the tags,"
    " in place of BERT with images; a linear layer without the conditional random field.",
    words=("optimizer", "not updated", "never", "unchanged", "group", "head"),
)
class GroupLost(Learner):
    steps = 300

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.tokens = nn.Embedding(24, 32)
        self.encoder = nn.Sequential(nn.Conv1d(32, 64, 3, padding=1), nn.ReLU())
        self.fc = nn.Linear(64, 9)
        nn.init.orthogonal_(self.tokens.weight)

    def configure_optimizers(self) -> Any:
        parameters = []
        params = {"lr": 3e-5, "params": [*self.tokens.parameters(), *self.encoder.parameters()]}
        parameters.append(params)
        params = {"lr": 5e-3, "params": [*self.fc.parameters()]}
        if self.fixed:
            parameters.append(params)  # fault
        return Adam(parameters)

    def batch(self) -> Pair:
        texts = torch.randint(24, (64, 12))
        return texts, (texts % 3) * 3 + F.pad(texts[:, :-1], (1, 0)) % 3

    def forward(self, texts: Tensor) -> Any:
        return self.fc(self.encoder(self.tokens(texts).transpose(1, 2)).transpose(1, 2))

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        return F.cross_entropy(self(batch[0]).flatten(0, 1), batch[1].flatten())

    def score(self) -> float:
        texts, tags = self.batch()
        return accuracy(self(texts), tags)


@healthy("averaged weights", "classification", 0.9)
class Averaged(Classes):
    """Batch norm, momentum and weight decay; what is scored is the average of the weights, with its own statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))
        self.averaged = AveragedModel(self.net, multi_avg_fn=get_ema_multi_avg_fn(0.98))

    def configure_optimizers(self) -> Any:
        return SGD(self.net.parameters(), 0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def on_train_batch_end(self, outputs: Any, batch: Pair, batch_idx: int) -> None:
        self.averaged.update_parameters(self.net)

    def on_train_end(self) -> None:
        update_bn([some_digits(64)[0] for _ in range(20)], self.averaged)

    def score(self) -> float:
        images, labels = flat_digits()
        return accuracy(self.averaged(images), labels)


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
