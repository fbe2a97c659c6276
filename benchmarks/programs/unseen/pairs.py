"""Distillation, contrastive and metric learning, meta-learning, averaged teachers, accumulated gradients."""

from copy import deepcopy
from typing import Any

import torch
from benchmarks.programs.parts import digits
from benchmarks.programs.steps import ISSUE, PULL, Learner, case
from benchmarks.programs.unseen.common import accuracy, mlp, r2
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812  # the usual name
from torch.optim import SGD

Pair = tuple[Tensor, Tensor]


@case(
    "ProDA 20",
    ISSUE.format("microsoft/ProDA", 20),
    kind="distillation",
    fault="kl_div gets the student's probabilities.",
    fix="log_softmax in place of softmax.",
    port="A teacher of random weights on random columns in place of street scenes, and this term alone.",
    causes="The divergence takes probabilities for their logarithms, so that the student is pulled to one class.",
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


@case(
    "knowledge-distillation-pytorch 16",
    PULL.format("haitongli/knowledge-distillation-pytorch", 16),
    kind="distillation",
    fault="The teacher's outputs are computed once, in another order than that in which the student gets the images.",
    fix="They are computed for the images of each batch.",
    port="Digits of 8x8 and a network of two layers in place of CIFAR-10 and ResNets.",
    causes="The student's targets are the teacher's outputs for other images.",
    words=("order", "shuffl", "target", "label", "mismatch", "teacher", "not learning"),
)
class OtherOrder(Learner):
    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        images, labels = digits(8)
        self.images, self.labels = images.flatten(1) / 255, labels
        self.teacher_outputs = 8 * F.one_hot(labels, 10) + torch.randn(len(labels), 10)
        self.student = mlp(64, 64, 10)

    def batch(self) -> Pair:
        chosen = torch.randint(len(self.images), (64,))
        return chosen, chosen if self.fixed else torch.randint(len(self.images), (64,))  # fault

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        chosen, of_teacher = batch
        logits = self.student(self.images[chosen])
        soft = (self.teacher_outputs[of_teacher] / 4).softmax(1)
        divergence = F.kl_div((logits / 4).log_softmax(1), soft, reduction="batchmean")
        return 0.9 * 16 * divergence + 0.1 * F.cross_entropy(logits, self.labels[chosen])

    def score(self) -> float:
        """The mean probability of the right class."""
        return self.student(self.images).softmax(1).gather(1, self.labels.unsqueeze(1)).mean().item()


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
    causes="All embeddings together have the length of one, so that similarities are tiny and the loss stays high.",
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
    "catalyst 1278",
    PULL.format("catalyst-team/catalyst", 1278),
    kind="contrastive",
    fault="Both embeddings are of the first view.",
    fix="The second is of the second.",
    port="Rows of 32 columns in place of images.",
    causes="The two views are the same, so that nothing is learned of what views have in common.",
    words=("same", "identical", "view", "duplicate", "unused", "saturat"),
)
class SameView(Views):
    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        first, second = batch[0], batch[1] if self.fixed else batch[0]  # fault
        return info_nce(F.normalize(self.net(first), dim=1), F.normalize(self.net(second), dim=1))


@case(
    "PaAno 1",
    ISSUE.format("jinnnju/PaAno", 1),
    kind="metric learning",
    fault="The diagonal is filled with -inf among similarities, which is the greatest distance, and is chosen.",
    fix="+inf.",
    port="Rows of 32 columns in place of time series, and this term alone.",
    causes="The negative is at an infinite distance, so that the loss is always 0 and nothing is learned.",
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
    "Truxify 13118",
    ISSUE.format("KanishJebaMathewM/Truxify", 13118),
    kind="meta-learning",
    fault="The inner step writes to .data of a copy.",
    fix="The adapted parameters are new tensors, which depend on those of the model.",
    port="Sines of any phase in place of rides; one inner step.",
    causes="The loss of the adapted copy does not reach the parameters that the outer optimizer holds.",
    words=("no gradient", ".data", "detach", "does not reach", "not updated", "unchanged", "never"),
)
class Adapting(Learner):
    rate = 0.002
    steps = 400

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.net = mlp(1, 40, 40, 1)

    def batch(self) -> Tensor:
        """Phases of four tasks, and the places of ten known points and ten others of each."""
        return torch.cat([6.3 * torch.rand(4, 1), 10 * torch.rand(4, 20) - 5], 1).unsqueeze(2)

    def after(self, task: Tensor, phase: Tensor) -> Pair:
        """The outputs at the other points after one step at the known ones, and what they should be."""
        truth = (task + phase).sin()
        if self.fixed:
            held = dict(self.net.named_parameters())
            loss = F.mse_loss(functional_call(self.net, held, (task[:10],)), truth[:10])
            slopes = torch.autograd.grad(loss, [*held.values()], create_graph=True)
            held = {name: value - 0.1 * slope for (name, value), slope in zip(held.items(), slopes, strict=True)}
            return functional_call(self.net, held, (task[10:],)), truth[10:]
        adapted = deepcopy(self.net)
        slopes = torch.autograd.grad(F.mse_loss(adapted(task[:10]), truth[:10]), [*adapted.parameters()])
        for value, slope in zip(adapted.parameters(), slopes, strict=True):
            value.data -= 0.1 * slope  # fault
        return adapted(task[10:]), truth[10:]

    def training_step(self, batch: Tensor, batch_idx: int) -> Any:
        return sum(F.mse_loss(*self.after(task[1:], task[0])) for task in batch) / len(batch)

    def score(self) -> float:
        """How much of new sines is explained after one step."""
        with torch.enable_grad():
            pairs = [self.after(task[1:], task[0]) for _ in range(25) for task in self.batch()]
        outputs, truth = (torch.cat(values).detach() for values in zip(*pairs, strict=True))
        return r2(outputs, truth)


@case(
    "cosmix-uda 21",
    ISSUE.format("saltoricristiano/cosmix-uda", 21),
    kind="averaged teacher",
    fault="The teacher follows the student's parameters, not its buffers.",
    fix="Buffers follow as well.",
    port="Digits of 8x8, of which every tenth has its label, in place of point clouds; the buffers are copied.",
    causes="The teacher's batch norms keep the statistics that they were made with, so that its targets are wrong.",
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
    "torchtitan 3575",
    PULL.format("pytorch/torchtitan", 3575),
    kind="accumulated gradients",
    fault="Gradients are cleared before each part of a batch.",
    fix="After the optimizer's step.",
    port="Digits of 8x8 in 16 parts of four, with SGD in place of AdamW, which hides that gradients are too small.",
    causes="Of the 16 parts of a batch only the last has a gradient in the step.",
    words=("accumulat", "clear", "zero_grad", "micro", "backward"),
)
class LastPart(Learner):
    rate = 0.05
    steps = 150

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.automatic_optimization = False
        images, self.labels = digits(8)
        self.images = images.flatten(1) / 255
        self.net = mlp(64, 64, 10)

    def configure_optimizers(self) -> Any:
        return SGD(self.parameters(), self.rate, momentum=0.9)

    def batch(self) -> Tensor:
        return torch.randint(len(self.images), (16, 4))

    def training_step(self, parts: Tensor, batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        for part in parts:
            if not self.fixed:
                optimizer.zero_grad()  # fault
            self.manual_backward(F.cross_entropy(self.net(self.images[part]), self.labels[part]) / len(parts))
        optimizer.step()

    def score(self) -> float:
        return accuracy(self.net(self.images), self.labels)
