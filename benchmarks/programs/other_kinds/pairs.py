"""Two views, two networks or two domains: distillation, contrast, metrics, averaged teachers."""

from copy import deepcopy
from typing import Any

import torch
from benchmarks.programs.other_kinds.common import Pair, flat_digits, mlp, some_digits
from benchmarks.programs.parts import accuracy, digits
from benchmarks.programs.program import ISSUE, Learner, case, healthy
from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.autograd.function import Function
from torch.nn import functional as F  # noqa: N812  # the usual name
from torch.optim import SGD, Adam


def labelled(shift: float) -> Pair:
    """Columns of two classes, the first of them shifted as in another domain, and their labels."""
    labels = torch.randint(2, (128,))
    columns = torch.randn(128, 10)
    columns[:, 0] = 3.0 * labels - 1.5 + torch.randn(128) / 2 + shift
    columns[:, 1] = 2.0 * labels - 1.0 + torch.randn(128) / 2
    return columns, labels


def two_domains() -> tuple[Tensor, Tensor, Tensor]:
    """Columns and labels of the source, and columns of the target."""
    return *labelled(0.0), labelled(4.0)[0]


def real_or_not(scores: Tensor, is_real: bool) -> Tensor:
    return F.binary_cross_entropy_with_logits(scores, torch.full_like(scores, float(is_real)))


@case(
    "FL-MRCM 10",
    ISSUE.format("guopengf/FL-MRCM", 10),
    kind="adversarial alignment",
    fault="The adversarial loss is added as a plain number: detach().item().",
    fix="The loss is added, and detached only for the log.",
    port="Two classes in ten columns, of which the target domain shifts one, in place of MR images.",
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

    def batch(self) -> tuple[Tensor, Tensor, Tensor]:
        return two_domains()

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
        columns, labels = map(torch.cat, zip(*[labelled(4.0) for _ in range(8)], strict=True))
        return accuracy(self.classifier(self.encoder(columns)), labels)


@case(
    "ProDA 20",
    ISSUE.format("microsoft/ProDA", 20),
    kind="distillation",
    fault="kl_div gets the student's probabilities.",
    fix="log_softmax in place of softmax.",
    port="A teacher of random weights on random columns in place of street scenes, and this term alone.",
    words=("log", "probabilit", "kl", "negative", "softmax"),
)
class NoLogarithm(Learner):
    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.teacher = mlp(8, 32, 6).requires_grad_(False)
        self.student = mlp(8, 64, 6)

    def batch(self) -> Tensor:
        return torch.randn(64, 8)

    def training_step(self, columns: Tensor, batch_idx: int) -> Tensor:
        wanted = (4 * self.teacher(columns)).softmax(1)
        logits = self.student(columns)
        told = logits.log_softmax(1) if self.fixed else logits.softmax(1)  # fault
        return F.kl_div(told, wanted, reduction="batchmean")

    def score(self) -> float:
        """1 if the student's probabilities are the teacher's, 0 if they have nothing in common."""
        columns = torch.randn(512, 8)
        apart = self.student(columns).softmax(1) - (4 * self.teacher(columns)).softmax(1)
        return 1 - apart.abs().sum(1).mean().item() / 2


class Views(Learner):
    """Two views of things: eight columns that show what it is, and 24 that differ from view to view."""

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.net = mlp(32, 64, 16)
        self.mixing = torch.linalg.qr(torch.randn(32, 32)).Q

    def batch(self) -> Pair:
        things = torch.randn(64, 8)
        first, second = (
            torch.cat([things + 0.1 * torch.randn(64, 8), torch.randn(64, 24)], 1) @ self.mixing for _ in "12"
        )
        return first, second

    def score(self) -> float:
        """The share of things whose other view is the nearest of 64."""
        first, second = (F.normalize(self.net(views), dim=1) for views in self.batch())
        return accuracy(first @ second.T, torch.arange(64))


def info_nce(first: Tensor, second: Tensor, temperature: float = 0.2) -> Tensor:
    """Each thing is to be more alike to its other view than to those of the others."""
    similar = first @ second.T / temperature
    labels = torch.arange(len(similar))
    return (F.cross_entropy(similar, labels) + F.cross_entropy(similar.T, labels)) / 2


@case(
    "similarity 237",
    ISSUE.format("tensorflow/similarity", 237),
    kind="contrastive",
    fault="l2_normalize has no axis, and divides by the norm of the whole batch.",
    fix="axis=-1.",
    port="Rows of 32 columns in place of images; torch in place of TensorFlow; SGD.",
    words=("scale", "norm", "tiny", "batch", "not learning", "constant"),
)
class WholeNorm(Views):
    rate = 0.03

    def configure_optimizers(self) -> Any:
        return SGD(self.parameters(), self.rate, momentum=0.9)

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        first, second = map(self.net, batch)
        if self.fixed:
            return info_nce(F.normalize(first, dim=1), F.normalize(second, dim=1))
        return info_nce(first / first.norm(), second / second.norm())  # fault


@case(
    "PaAno 1",
    ISSUE.format("jinnnju/PaAno", 1),
    kind="metric learning",
    fault="The diagonal is filled with -inf among similarities, which is the greatest distance, and is chosen.",
    fix="+inf.",
    port="Rows of 32 columns in place of time series, and this term alone.",
    words=("zero", "no gradient", "constant", "infinit", "not learning"),
)
class InfiniteNegative(Views):
    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        first, second = (F.normalize(self.net(views), dim=1) for views in batch)
        similar = first @ first.T
        similar = similar.masked_fill(
            torch.eye(len(first), dtype=torch.bool), torch.inf * (1 if self.fixed else -1)
        )  # fault
        negative = (1 - similar).max(1).values
        return F.relu(1 - (first * second).sum(1) - negative + 0.5).mean()


@case(
    "cosmix-uda 21",
    ISSUE.format("saltoricristiano/cosmix-uda", 21),
    kind="averaged teacher",
    fault="The teacher follows the student's parameters, not its buffers.",
    fix="Buffers follow as well.",
    port="Digits of 8x8, of which every tenth has its label, in place of point clouds; the buffers are copied.",
    words=("buffer", "batch norm", "batchnorm", "running", "statistic", "teacher"),
)
class StaleBuffers(Learner):
    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        images, self.labels = digits(8)
        self.images = images.flatten(1)
        self.net = nn.Sequential(
            nn.Linear(64, 64),
            nn.BatchNorm1d(64),
            nn.ReLU(),
            nn.Linear(64, 64),
            nn.BatchNorm1d(64),
            nn.ReLU(),
            mlp(64, 10),
        )
        self.teacher = deepcopy(self.net).requires_grad_(False)

    def batch(self) -> Pair:
        return 10 * torch.randint(len(self.images) // 10, (32,)), torch.randint(len(self.images), (64,))

    def follow(self) -> None:
        with torch.no_grad():
            for its, mine in zip(self.teacher.parameters(), self.net.parameters(), strict=True):
                its.lerp_(mine, 0.05)
            if self.fixed:  # fault
                for kept, new in zip(self.teacher.buffers(), self.net.buffers(), strict=True):
                    kept.copy_(new)

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        known, others = batch
        loss = F.cross_entropy(self.net(self.images[known]), self.labels[known])
        told = self.teacher.eval()(self.images[others]).softmax(1)
        loss = loss + (self.net(self.images[others]).softmax(1) - told).square().sum(1).mean()
        self.follow()
        return loss

    def score(self) -> float:
        """The share of right classes of the teacher, which is what is kept."""
        return accuracy(self.teacher(self.images), self.labels)


@case(
    "signet-pytorch 2",
    ISSUE.format("VinhLoiIT/signet-pytorch", 2),
    kind="siamese network",
    fault="Pairs of one writer have the label 1, which the loss takes for pairs of two.",
    fix="y and 1 - y are exchanged in the loss.",
    port="Digits of 8x8, of which pairs show the same or another, in place of signatures.",
    words=("label", "invert", "swap", "sign", "opposite", "wrong way", "constant", "collapse"),
)
class LabelsAround(Learner):
    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        images, self.labels = digits(8)
        self.images, self.net = images.flatten(1) / 255, mlp(64, 64, 8)

    def batch(self) -> tuple[Tensor, Tensor, Tensor]:
        first, second = torch.randint(len(self.labels), (2, 128))
        partner = torch.randint(len(self.labels), (128, 40))
        same = self.labels[partner] == self.labels[first].unsqueeze(1)
        found = partner.gather(1, same.float().argmax(1, keepdim=True)).squeeze(1)
        second = torch.where(torch.rand(128) < 0.5, found, second)
        is_genuine = (self.labels[first] == self.labels[second]).float()
        return self.images[first], self.images[second], is_genuine

    def apart(self, first: Tensor, second: Tensor) -> Tensor:
        return F.pairwise_distance(self.net(first), self.net(second))

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor], batch_idx: int) -> Tensor:
        distances, label = self.apart(*batch[:2]), batch[2] if self.fixed else 1 - batch[2]  # fault
        return (label * distances.square() + (1 - label) * F.relu(1 - distances).square()).mean()

    def score(self) -> float:
        """The share of pairs of pairs, one like and one not, in which the like one is nearer."""
        first, second, is_genuine = self.batch()
        distances = self.apart(first, second)
        like, unlike = distances[is_genuine == 1], distances[is_genuine == 0]
        return (like.unsqueeze(1) < unlike).double().mean().item()


class Reversed(Function):
    """A layer that gives its inputs, and multiplies their gradient by minus a number."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, constant: float) -> Tensor:
        ctx.constant = constant
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        return slopes[0].neg() * ctx.constant, None


@case(
    "pytorch_DANN 10",
    ISSUE.format("CuthbertCai/pytorch_DANN", 10),
    kind="domain adaptation",
    fault="The factor of the gradient reversal layer is negative, as gamma is -10, and the layer negates as well.",
    fix="gamma = 10.",
    port="Two classes in ten columns, of which the other domain shifts one, in place of digits.",
    words=("sign", "revers", "domain", "adversarial", "negative"),
)
class ReversedTwice(Learner):
    rate = 0.002
    steps = 600

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.gamma = 10 if fixed else -10  # fault
        self.encoder, self.classifier, self.domain = mlp(10, 32, 8), nn.Linear(8, 2), mlp(8, 32, 2)

    def batch(self) -> tuple[Tensor, Tensor, Tensor]:
        return two_domains()

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor], batch_idx: int) -> Tensor:
        source, labels, target = batch
        progress = torch.tensor(batch_idx / self.steps)
        constant = (2 / (1 + (-self.gamma * progress).exp()) - 1).item()
        features = self.encoder(torch.cat([source, target]))
        told = self.domain(Reversed.apply(features, constant))
        domains = torch.arange(2).repeat_interleave(128)
        return F.cross_entropy(self.classifier(features[:128]), labels) + F.cross_entropy(told, domains)

    def score(self) -> float:
        """The share of right classes in the other domain."""
        columns, labels = map(torch.cat, zip(*[labelled(4.0) for _ in range(8)], strict=True))
        return accuracy(self.classifier(self.encoder(columns)), labels)


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


def nearest_accuracy(embed: Any) -> float:
    """The share of digits whose nearest neighbor, of 400, is the same digit."""
    images, labels = flat_digits()
    embedded = F.normalize(embed(images[:400]), dim=1)
    similar = (embedded @ embedded.T).fill_diagonal_(-torch.inf)
    return (labels[:400][similar.argmax(1)] == labels[:400]).double().mean().item()


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


@healthy("prototypes", "few-shot learning", 0.8)
class Prototypes(Learner):
    """Episodes of five digits with five known and ten other pictures each; the mean of the known is a prototype."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(64, 64, 16)

    def batch(self) -> Tensor:
        images, labels = flat_digits()
        weights = (labels.unsqueeze(0) == torch.randperm(10)[:5].unsqueeze(1)).float()
        return images[torch.multinomial(weights, 15)]

    def forward(self, episode: Tensor) -> Any:
        embedded = self.net(episode)
        return -torch.cdist(embedded[:, 5:].flatten(0, 1), embedded[:, :5].mean(1)).square()

    def training_step(self, episode: Tensor, batch_idx: int) -> Tensor:
        return F.cross_entropy(self(episode), torch.arange(5).repeat_interleave(10))

    def score(self) -> float:
        labels = torch.arange(5).repeat_interleave(10)
        return sum(accuracy(self(self.batch()), labels) for _ in range(20)) / 20


@healthy("siamese digits", "siamese network", 0.9)
class Siamese(Learner):
    """Pairs that are alike come together, and others are kept apart by a margin."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(64, 64, 16)

    def batch(self) -> tuple[Tensor, Tensor, Tensor]:
        (first, labels), (second, others) = some_digits(256), some_digits(256)
        kept = (labels == others) | (torch.rand(256) < 0.2)
        return first[kept], second[kept], (labels == others)[kept].float()

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor], batch_idx: int) -> Tensor:
        distances = F.pairwise_distance(self.net(batch[0]), self.net(batch[1]))
        return (batch[2] * distances.square() + (1 - batch[2]) * F.relu(2 - distances).square()).mean()

    def score(self) -> float:
        return nearest_accuracy(self.net)
