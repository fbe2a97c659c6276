"""Pairs, teachers, adapters, experts, and other domains."""

import math
from typing import Any

import torch
from benchmarks.programs.parts import digits
from benchmarks.programs.steps import ISSUE, PULL, Learner, case
from benchmarks.programs.unseen.common import accuracy, mlp, r2
from torch import Tensor, nn
from torch.autograd.function import Function
from torch.nn import functional as F  # noqa: N812  # the usual name

Pair = tuple[Tensor, Tensor]


@case(
    "signet-pytorch 2",
    ISSUE.format("VinhLoiIT/signet-pytorch", 2),
    kind="siamese network",
    fault="Pairs of one writer have the label 1, which the loss takes for pairs of two.",
    fix="y and 1 - y are exchanged in the loss.",
    port="Digits of 8x8, of which pairs show the same or another, in place of signatures.",
    causes="The labels are the wrong way around: like pairs are pushed apart, and unlike ones pulled together.",
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


class Adapted(nn.Module):
    """A frozen layer with slots for adapters of a low rank."""

    def __init__(self, layer: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.randn(layer.in_features, rank))
        self.lora_b = nn.Parameter(torch.zeros(rank, layer.out_features))

    def clear(self) -> None:
        """Free the slot."""
        self.lora_a.data.zero_()
        self.lora_b.data.zero_()

    def forward(self, inputs: Tensor) -> Any:
        return self.layer(inputs) + inputs @ self.lora_a @ self.lora_b


@case(
    "SkyRL 852",
    PULL.format("NovaSky-AI/SkyRL", 852),
    kind="adapters",
    fault="A slot for an adapter is cleared and used again, without new random numbers in lora_A.",
    fix="lora_A is initialized when a slot is used, and lora_B is zero.",
    port="Two layers of random weights, to which a change of a low rank is learned, in place of a language model; torch"
    " in place of JAX.",
    causes="Both factors of the adapters are zero, so that neither gets a gradient and nothing is learned.",
    words=("zero", "no gradient", "gradient is", "init", "unchanged", "constant", "never"),
)
class BothZero(Learner):
    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        base, changed = mlp(16, 32, 8), mlp(16, 32, 8)
        changed.load_state_dict(base.state_dict())
        for layer in (changed[0], changed[2]):
            shape = layer.weight.shape
            layer.weight.data += torch.randn(shape[0], 2) @ torch.randn(2, shape[1]) / 6
        self.wanted = changed.requires_grad_(False)
        self.adapters = nn.ModuleList([Adapted(base[0]), Adapted(base[2])])  # type: ignore[arg-type]  # both are linear
        for adapter in self.adapters:
            adapter.clear()
            if fixed:  # fault
                nn.init.kaiming_uniform_(adapter.lora_a)

    def batch(self) -> Tensor:
        return torch.randn(64, 16)

    def forward(self, inputs: Tensor) -> Any:
        return self.adapters[1](self.adapters[0](inputs).relu())

    def training_step(self, inputs: Tensor, batch_idx: int) -> Tensor:
        return F.mse_loss(self(inputs), self.wanted(inputs))

    def score(self) -> float:
        inputs = torch.randn(1024, 16)
        return r2(self(inputs), self.wanted(inputs))


@case(
    "trl 2201",
    PULL.format("huggingface/trl", 2201),
    kind="mixture of experts",
    fault="The coefficient of the loss that balances the experts is read as 0.",
    fix="It is that of the model's configuration.",
    port="Eight experts, of which each of eight places of clouds needs one, with the best expert of each sample alone,"
    " in place of language models; the router is made with a strong preference for one, and the coefficient is 0.3.",
    causes="The balancing loss has a weight of 0, so that few experts are used and the others are not trained.",
    words=("expert", "balance", "zero", "weight of 0", "no gradient", "unused", "router", "collapse"),
)
class Unbalanced(Learner):
    rate = 0.01
    steps = 600

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.router = nn.Linear(4, 8)
        nn.init.zeros_(self.router.bias)
        self.router.bias.data[0] = 8.0
        self.experts = nn.ModuleList(nn.Linear(4, 2) for _ in range(8))
        self.places, self.maps = 2 * torch.randn(8, 4), torch.randn(8, 4, 2)
        self.coefficient = 0.3 if fixed else 0.0  # fault

    def batch(self) -> Pair:
        which = torch.randint(8, (128,))
        offsets = torch.randn(128, 4)
        return self.places[which] + 0.5 * offsets, (offsets.unsqueeze(1) @ self.maps[which]).squeeze(1)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        likely = self.router(inputs).softmax(1)
        best = likely.argmax(1)
        outputs = torch.stack([expert(inputs) for expert in self.experts], 1)[torch.arange(len(inputs)), best]
        chosen = likely.gather(1, best.unsqueeze(1))
        return chosen * outputs, 8 * (F.one_hot(best, 8).float().mean(0) * likely.mean(0)).sum()

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        outputs, balance = self(batch[0])
        return F.mse_loss(outputs, batch[1]) + self.coefficient * balance

    def score(self) -> float:
        """How evenly the experts are used: 1 if all are alike, 0 if one does all."""
        inputs = torch.cat([self.batch()[0] for _ in range(8)])
        shares = F.one_hot(self.router(inputs).argmax(1), 8).float().mean(0)
        return torch.special.entr(shares).sum().item() / math.log(8)


@case(
    "annotated_deep_learning 66",
    ISSUE.format("labmlai/annotated_deep_learning_paper_implementations", 66),
    kind="distillation",
    fault="The student's soft probabilities are computed from the teacher's outputs.",
    fix="From the student's.",
    port="A teacher of random weights on random columns in place of networks on CIFAR-10.",
    causes="The distillation loss does not depend on the student, which learns from the labels alone.",
    words=("teacher", "no gradient", "constant", "does not", "zero", "student", "no influence"),
)
class TeacherTwice(Learner):
    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.large = mlp(8, 32, 6).requires_grad_(False)
        self.student = mlp(8, 32, 6)

    def batch(self) -> Tensor:
        return torch.randn(64, 8)

    def training_step(self, columns: Tensor, batch_idx: int) -> Tensor:
        with torch.no_grad():
            large_logits = 3 * self.large(columns)
        logits = self.student(columns)
        soft_targets = (large_logits / 2).log_softmax(1)
        soft_prob = ((logits if self.fixed else large_logits) / 2).log_softmax(1)  # fault
        divergence = F.kl_div(soft_prob, soft_targets, reduction="batchmean", log_target=True)
        return 0.9 * 4 * divergence + 0.1 * F.cross_entropy(logits, large_logits.argmax(1))

    def score(self) -> float:
        """1 if the student's probabilities are the teacher's, 0 if they have nothing in common."""
        columns = torch.randn(512, 8)
        apart = self.student(columns).softmax(1) - (3 * self.large(columns)).softmax(1)
        return 1 - apart.abs().sum(1).mean().item() / 2


class Seen(Learner):
    """Two views of things: eight columns that show what it is, and 24 that differ from view to view."""

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.mixing = torch.linalg.qr(torch.randn(32, 32)).Q
        self.net = mlp(32, 64, 16)

    def batch(self) -> Pair:
        things = torch.randn(64, 8)
        first, second = (
            torch.cat([things + 0.1 * torch.randn(64, 8), torch.randn(64, 24)], 1) @ self.mixing for _ in "12"
        )
        return first, second

    def score(self) -> float:
        """The share of things whose other view is the nearest of 64."""
        right = []
        for _ in range(8):
            first, second = (F.normalize(self.net(views), dim=1) for views in self.batch())
            right.append(accuracy(first @ second.T, torch.arange(64)))
        return sum(right) / len(right)


@case(
    "barlowtwins 1",
    PULL.format("IgorSusmelj/barlowtwins", 1),
    kind="contrastive",
    fault="What is off the diagonal is multiplied by lambda in a copy.",
    fix="In place.",
    port="Rows of 32 columns in place of images; a lambda of 0.005, as there.",
    causes="The weight of the terms off the diagonal has no effect, so that they outweigh those that bring views"
    " together 200 times.",
    words=("weight", "outweigh", "dominat", "off-diagonal", "scale", "balance"),
)
class LambdaLost(Seen):
    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.net = mlp(32, 64, 64)

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        first, second = ((outputs - outputs.mean(0)) / outputs.std(0) for outputs in map(self.net, batch))
        apart = (first.T @ second / len(first) - torch.eye(64)).square()
        off = ~torch.eye(64, dtype=torch.bool)
        if self.fixed:
            apart[off] *= 0.005
        else:
            apart[off].mul_(0.005)  # fault
        return apart.sum()


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
    causes="The gradient is reversed twice: the features are trained to tell the domains apart.",
    words=("sign", "revers", "domain", "adversarial", "negative"),
)
class ReversedTwice(Learner):
    rate = 0.002
    steps = 600

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.gamma = 10 if fixed else -10  # fault
        self.encoder, self.classifier, self.domain = mlp(10, 32, 8), nn.Linear(8, 2), mlp(8, 32, 2)

    def labelled(self, shift: float) -> Pair:
        labels = torch.randint(2, (128,))
        columns = torch.randn(128, 10)
        columns[:, 0] = 3.0 * labels - 1.5 + torch.randn(128) / 2 + shift
        columns[:, 1] = 2.0 * labels - 1.0 + torch.randn(128) / 2
        return columns, labels

    def batch(self) -> tuple[Tensor, Tensor, Tensor]:
        return *self.labelled(0.0), self.labelled(4.0)[0]

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
        columns, labels = map(torch.cat, zip(*[self.labelled(4.0) for _ in range(8)], strict=True))
        return accuracy(self.classifier(self.encoder(columns)), labels)
