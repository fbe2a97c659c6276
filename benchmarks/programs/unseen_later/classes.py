"""Classification and autoencoders: targets, weights, modes, schedules and optimizers."""

from typing import Any

import torch
from benchmarks.programs.parts import digits
from benchmarks.programs.steps import ISSUE, PULL, Learner, case
from benchmarks.programs.unseen.common import accuracy, mlp, r2
from torch import Tensor, nn
from torch.distributions import Beta
from torch.nn import functional as F  # noqa: N812  # the usual name
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import StepLR

Pair = tuple[Tensor, Tensor]


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
    causes="The loss takes probabilities for logits, so that its gradient is small and its least value is high.",
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
    causes="A mixed image has the label of another partner than the one whose image was mixed in.",
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
    causes="The frequent class has the greater weight, so that the rare one is never predicted.",
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
    causes="The last layer is in no group of the optimizer, and stays as it was made.",
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


@case(
    "VAME 26",
    ISSUE.format("LINCellularNeuroscience/VAME", 26),
    kind="autoencoder",
    fault="With the schedule turned off, StepLR has gamma=0.",
    fix="gamma=1.",
    port="Short waves in place of poses, without the variational part; an epoch is a step, and 100 are 40.",
    causes="The learning rate is 0 after 40 steps, and nothing is learned any more.",
    words=("learning rate", "rate", "zero", "schedule", "not updated", "stops", "unchanged"),
)
class RateGone(Learner):
    rate = 0.005

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.encoder, self.code = nn.GRU(1, 32, batch_first=True), nn.Linear(32, 4)
        self.decoder, self.head = nn.GRU(4, 32, batch_first=True), nn.Linear(32, 1)

    def configure_optimizers(self) -> Any:
        optimizer = Adam(self.parameters(), self.rate)
        schedule = StepLR(optimizer, step_size=40, gamma=1 if self.fixed else 0)  # fault
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def batch(self) -> Tensor:
        paces, phases = 0.3 + torch.rand(64, 1) / 2, 6.3 * torch.rand(64, 1)
        return torch.sin(paces * torch.arange(12) + phases).unsqueeze(2)

    def forward(self, series: Tensor) -> Any:
        codes = self.code(self.encoder(series)[1][0])
        return self.head(self.decoder(codes.unsqueeze(1).expand(-1, 12, -1))[0])

    def training_step(self, series: Tensor, batch_idx: int) -> Tensor:
        return F.mse_loss(self(series), series)

    def score(self) -> float:
        series = self.batch()
        return r2(self(series).flatten(), series.flatten())


@case(
    "clevr-iep 22",
    PULL.format("facebookresearch/clevr-iep", 22),
    kind="classification",
    fault="The accuracy is checked in evaluation mode, and the model is left in it.",
    fix="It is put back to training mode.",
    port="Digits of 8x8 from 0 to 255 and layers with batch norm, in place of programs that answer questions about"
    " pictures; the first check is after the first step.",
    causes="After the check the model trains in evaluation mode: batch norm keeps the statistics of the start, and"
    " nothing is dropped.",
    words=("eval", "mode", "batch norm", "batchnorm", "running", "dropout"),
)
class LeftInEvaluation(Digits):
    rate = 0.1
    steps = 300

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        blocks = [nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU()) for _ in range(5)]
        self.net = nn.Sequential(*blocks, nn.Dropout(0.2), nn.Linear(64, 10))
        self.images, self.test = 255 * self.images, (255 * self.test[0], self.test[1])

    def configure_optimizers(self) -> Any:
        return SGD(self.parameters(), self.rate, momentum=0.9)

    def check(self) -> None:
        self.net.eval()
        with torch.no_grad():
            self.log("accuracy", accuracy(self.net(self.test[0]), self.test[1]))
        if self.fixed:
            self.net.train()  # fault

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        if batch_idx % 100 == 1:
            self.check()
        return F.cross_entropy(self.net(batch[0]), batch[1])


@case(
    "pycadl 5",
    PULL.format("pkmital/pycadl", 5),
    kind="autoencoder",
    fault="The images are divided by 255 where they are read, and once more where they are used.",
    fix="Once.",
    port="Digits of 8x8 and a variational autoencoder of two layers in place of DRAW; torch in place of TensorFlow.",
    causes="All pixels are nearly 0, so that codes tell nothing and all outputs are the same.",
    words=("scale", "range", "tiny", "small", "constant", "collapse", "input"),
)
class DividedTwice(Digits):
    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.encoder, self.decoder = mlp(64, 64, 16), mlp(8, 64, 64)
        del self.net

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        images = batch[0] if self.fixed else batch[0] / 255  # fault
        means, logs = self.encoder(images).chunk(2, 1)
        outputs = self.decoder(means + (logs / 2).exp() * torch.randn_like(means))
        error = F.binary_cross_entropy_with_logits(outputs, images, reduction="none").sum(1)
        return (error + (means.square() + logs.exp() - 1 - logs).sum(1) / 2).mean()

    def score(self) -> float:
        """The share of the variance of pixels that is explained, at the scale that is trained on."""
        images = self.test[0] if self.fixed else self.test[0] / 255
        means = self.encoder(images).chunk(2, 1)[0]
        return r2(self.decoder(means).sigmoid().flatten(), images.flatten())


@case(
    "facenet 673",
    ISSUE.format("davidsandberg/facenet", 673),
    kind="metric learning",
    fault="center_loss gives the loss and the update of the centers, and only the loss is run.",
    fix="The update runs before the loss.",
    port="Digits of 8x8 in place of faces; torch in place of TensorFlow; this term has a weight of 1.",
    causes="The centers of the classes are never updated, and pull all features to zero, where they were made.",
    words=("center", "buffer", "never", "not updated", "unchanged", "constant"),
)
class StillCenters(Digits):
    centers: Tensor

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.net, self.head = mlp(64, 64, 8), nn.Linear(8, 10)
        self.register_buffer("centers", torch.zeros(10, 8))

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        features, held = self.net(batch[0]), self.centers[batch[1]]
        updated = self.centers.index_add(0, batch[1], 0.05 * (features.detach() - held))
        if self.fixed:
            self.centers.copy_(updated)  # fault
        return F.cross_entropy(self.head(features), batch[1]) + (features - held).square().sum(1).mean()

    def score(self) -> float:
        """The mean probability of the right class."""
        likely = self.head(self.net(self.test[0])).softmax(1)
        return likely.gather(1, self.test[1].unsqueeze(1)).mean().item()
