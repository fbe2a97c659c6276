"""Programs found after `held_out.py`: from issues on GitHub, PyTorch's forum and a blog.

The causes were committed before any monitor saw a program. After the blind run, rules were written for what had been
missed in two of them: layers in a list, and batch norms with a momentum of 0.
"""

from functools import partial
from typing import Any

import torch
from benchmarks.programs.held_out import Outputs
from benchmarks.programs.parts import accuracy, adam, digits, r2, sgd, standardized
from benchmarks.programs.program import Program, post
from sklearn.datasets import (  # type: ignore[import-untyped]  # has no stubs
    load_diabetes,
    load_digits,
    load_iris,
    load_wine,
)
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # the usual name
from torch.optim import Adam, RMSprop
from torch.optim.lr_scheduler import StepLR

ISSUE = "https://github.com/{}/issues/{}"
PULL = "https://github.com/{}/pull/{}"
FORUM = "https://discuss.pytorch.org/t/{}"


# Losses and what they get


@post(
    "federated-learning 9",
    ISSUE.format("shaoxiongji/federated-learning", 9),
    fault="The cross entropy of logits gets a softmax's outputs.",
    fix="No softmax.",
    port="Digits of 8x8 in place of MNIST, and one client in place of many; 500 steps.",
    causes=("loss_input", "output_range"),
)
def client(fixed: bool) -> Program:
    images, labels = digits(8)
    net = nn.Sequential(
        nn.Linear(64, 200),
        nn.Dropout(),
        nn.ReLU(),
        nn.Linear(200, 10),
        *([] if fixed else [nn.Softmax(1)]),
    )
    return Program(net, F.cross_entropy, images.flatten(1) / 255, labels, sgd(0.01, momentum=0.5), 10, 500, accuracy)


@post(
    "tutorials 1644",
    PULL.format("pytorch/tutorials", 1644),
    fault="The layer that gives the logits has the ReLU of the hidden ones.",
    fix="No activation at the output.",
    port="Digits of 28x28 in place of FashionMNIST, and a rate of 0.01 in place of 0.001; 1500 steps of 4690.",
    causes=("loss_input", "output_range", "dead_units"),
)
def quickstart(fixed: bool) -> Program:
    images, labels = digits(28)
    net = nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 512),
        nn.ReLU(),
        nn.Linear(512, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
        *([] if fixed else [nn.ReLU()]),
    )
    return Program(net, F.cross_entropy, images / 255, labels, sgd(0.01), 64, 1500, accuracy)


def f_score(outputs: Tensor, targets: Tensor) -> float:
    """Of class 1, of outputs of shape (samples, 2, steps)."""
    chosen = outputs.argmax(1)
    return (2 * (chosen * targets).sum() / (chosen + targets).sum().clamp(min=1)).item()


@post(
    "FCSN 32",
    ISSUE.format("weirme/FCSN", 32),
    fault="Scores (samples, classes, frames) are reshaped to (all frames, classes), which mixes classes and frames.",
    fix="permute() first.",
    port="Features of 64 channels over 48 frames, drawn at random, in place of videos'; three layers; 300 steps.",
    causes=("loss_shape",),
)
def video_summary(fixed: bool) -> Program:
    labels = (F.avg_pool1d(torch.randn(200, 1, 56), 9, 1) > 0.3).long().squeeze(1)
    features = torch.randn(200, 64, 48) + labels.unsqueeze(1) * torch.randn(64, 1)

    def loss(scores: Tensor, targets: Tensor) -> Tensor:
        likely = scores.log_softmax(1)
        rows = (likely.permute(0, 2, 1) if fixed else likely).reshape(-1, 2)
        ones = targets.double().mean().item()
        return F.nll_loss(rows, targets.flatten(), weight=torch.tensor([ones, 1 - ones]))

    net = nn.Sequential(
        nn.Conv1d(64, 32, 3, padding=1),
        nn.BatchNorm1d(32),
        nn.ReLU(),
        nn.Conv1d(32, 32, 3, padding=1),
        nn.BatchNorm1d(32),
        nn.ReLU(),
        nn.Conv1d(32, 2, 1),
    )
    return Program(net, loss, features, labels, Adam, 8, 300, f_score)


@post(
    "forum 50431",
    FORUM.format("why-the-model-fail-to-converge-without-a-manul-weight-initialization/50431"),
    fault="The result of squeeze() is thrown away, so that outputs (N, 1) meet targets (N,), each with every other.",
    fix="Outputs of shape (N,); the post had them with weights given as one row.",
    port="Nothing: 10,000 points of two columns of deviation 100; RMSprop at 0.01; 2000 steps of 3000.",
    causes=("loss_shape",),
)
def squeezed_in_vain(fixed: bool) -> Program:
    inputs = 100 * torch.randn(10_000, 2)
    targets = inputs @ torch.tensor([5.0, 3.0]) + torch.randn(10_000)
    net = nn.Sequential(nn.Linear(2, 1, bias=False), *([nn.Flatten(0)] if fixed else []))

    def score(outputs: Tensor, targets: Tensor) -> float:
        return r2(outputs.flatten(), targets)

    return Program(net, F.mse_loss, inputs, targets, partial(RMSprop, lr=0.01), 100, 2000, score)


class Variational(nn.Module):
    """Gives the picture again, and the means and log variances of what it was drawn from, side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 32))
        self.decoder = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 784))

    def forward(self, images: Tensor) -> Tensor:
        coded = self.encoder(images)
        means, log_variances = coded.chunk(2, 1)
        drawn = means + (log_variances / 2).exp() * torch.randn_like(means) if self.training else means
        return torch.cat([self.decoder(drawn), coded], 1)


@post(
    "MMVAE 19",
    PULL.format("zdebruine/MMVAE", 19),
    fault="The divergence is summed over the batch, the error of the pictures averaged over all pixels.",
    fix="The error is summed over the pixels, and both are averaged over the batch.",
    port="Digits of 28x28 in place of MNIST and of genes; 800 steps.",
    causes=("collapsed", "not_learning"),
)
def variational(fixed: bool) -> Program:
    images = digits(28)[0].flatten(1) / 255

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        pictures, means, log_variances = outputs.split([784, 16, 16], 1)
        divergence = -0.5 * (1 + log_variances - means.square() - log_variances.exp()).sum()
        error = F.mse_loss(pictures, targets, reduction="sum" if fixed else "mean")
        return (error + divergence) / len(targets) if fixed else error + divergence

    def score(outputs: Tensor, targets: Tensor) -> float:
        return r2(outputs[:, :784], targets)

    return Program(Variational(), loss, images, images, adam(), 64, 800, score)


def exposed(images: Tensor, _: Tensor) -> float:
    """1 if each patch of 4x4 has the brightness of 0.6; 0 if all are black."""
    return 1 - ((F.avg_pool2d(images.mean(1, keepdim=True), 4) - 0.6).abs().mean() / 0.6).item()


class Brightened(nn.Module):
    """Bends the brightness of each pixel by curves that layers draw; black stays black."""

    def __init__(self) -> None:
        super().__init__()
        self.curves = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 24, 3, padding=1),
            nn.Tanh(),
        )

    def forward(self, images: Tensor) -> Tensor:
        for curve in self.curves(images).chunk(8, 1):
            images = images + curve * (images.square() - images)
        return images


@post(
    "Zero-DCE_extension 2",
    ISSUE.format("Li-Chongyi/Zero-DCE_extension", 2),
    fault="The loss of colors takes the root of squared differences, which are all 0 for an image that is black.",
    fix="A small number below the root.",
    port="Dark waves of 16x16 in place of photographs, one of 100 black; fewer channels, and the losses of exposure"
    " and colors alone; 300 steps.",
    causes=("nonfinite",),
)
def brightened(fixed: bool) -> Program:
    images = 0.3 * torch.rand(400, 3, 1, 1) * F.interpolate(torch.rand(400, 1, 4, 4), size=(16, 16), mode="bilinear")
    images[::100] = 0

    def loss(outputs: Tensor, _: Tensor) -> Tensor:
        red, green, blue = outputs.mean((2, 3)).unbind(1)
        squares = (red - green) ** 4 + (red - blue) ** 4 + (green - blue) ** 4
        colors = ((squares + 1e-5) if fixed else squares).sqrt().mean()
        exposure = (F.avg_pool2d(outputs.mean(1, keepdim=True), 4) - 0.6).square().mean()
        return 5 * colors + 10 * exposure

    return Program(Brightened(), loss, images, images, partial(Adam, lr=1e-3), 8, 300, exposed)


# Attention, recurrence and order


class Attention(nn.Module):
    """Answers a query, the first of (samples, 1 + values, 12), by the values after it, weighted by how well they fit.

    Args:
        dim: of (samples, values): where the weights sum to 1.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.into = nn.Linear(12, 12, bias=False)
        self.out = nn.Linear(24, 12, bias=False)
        self.answer = nn.Linear(12, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        query, values = inputs[:, 0], inputs[:, 1:]
        weights = (values @ self.into(query).unsqueeze(2)).squeeze(2).softmax(self.dim)
        mixed = (weights.unsqueeze(1) @ values).squeeze(1)
        answer: Tensor = self.answer(self.out(torch.cat([mixed, query], 1)).tanh())
        return answer


@post(
    "PyTorch-NLP 2",
    ISSUE.format("PetrochukM/PyTorch-NLP", 2),
    fault="The weights of the attention sum to 1 over the batch, not over what is attended to.",
    fix="A softmax over the last dimension.",
    port="The module alone, which looks up one of 6 values by its key; 1500 steps.",
    causes=("batch_mixing",),
)
def looked_up(fixed: bool) -> Program:
    keys = torch.rand(2000, 8).argsort(1)[:, :6]
    answers = torch.randint(4, (2000, 6))
    values = torch.cat([F.one_hot(keys, 8), F.one_hot(answers, 4)], 2).float()
    query = values[:, :1].clone()
    query[:, :, 8:] = 0
    inputs = torch.cat([query, values[:, torch.randperm(6)]], 1)
    return Program(Attention(1 if fixed else 0), F.cross_entropy, inputs, answers[:, 0], adam(0.01), 64, 1500, accuracy)


@post(
    "pytorch 1538",
    ISSUE.format("pytorch/pytorch", 1538),
    fault="An LSTM without batch_first gets (samples, rows, columns), and so goes through the samples.",
    fix="batch_first.",
    port="Digits of 16x16 in place of MNIST's 28x28; Adam at the post's rate of 0.01; 300 steps.",
    causes=("batch_mixing",),
)
def rows(fixed: bool) -> Program:
    images, labels = digits(16)
    net = nn.Sequential(LastRow(nn.LSTM(16, 128, 2, batch_first=fixed)), nn.Linear(128, 10))
    return Program(net, F.cross_entropy, images.squeeze(1) / 255, labels, adam(0.01), 100, 300, accuracy)


class LastRow(Outputs):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs)[:, -1]


class Encoded(nn.Module):
    """Classifies texts of 12 tokens by the mean of a transformer's outputs, with or without positions."""

    def __init__(self, has_positions: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(20, 32)
        self.positions = nn.Parameter(torch.randn(12, 32)) if has_positions else None
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.classes = nn.Linear(32, 4)

    def forward(self, texts: Tensor) -> Tensor:
        embedded = self.tokens(texts)
        if self.positions is not None:
            embedded = embedded + self.positions
        classes: Tensor = self.classes(self.encoder(embedded).mean(1))
        return classes


@post(
    "openillumi",
    "https://openillumi.com/en/en-pytorch-transformer-seq-classify-fix",
    fault="A transformer classifies texts without being told where a token stands.",
    fix="Positions are added to the embeddings.",
    port="Texts of 12 tokens in which the order of two pairs tells the class, with learned positions; 800 steps.",
    causes=("not_learning", "labels"),
)
def without_positions(fixed: bool) -> Program:
    labels = torch.randint(4, (1600,))
    texts = torch.randint(4, 20, (1600, 12))
    places = torch.rand(1600, 12).argsort(1)[:, :4].reshape(1600, 2, 2).sort(2).values
    for pair in range(2):
        is_swapped = (labels >> pair & 1).unsqueeze(1)
        order = torch.tensor([[0, 1]]) ^ is_swapped
        texts.scatter_(1, places[:, pair], order + 2 * pair)
    return Program(Encoded(fixed), F.cross_entropy, texts, labels, adam(0.001), 32, 800, accuracy)


class Predictor(nn.Module):
    """Gives the logits of the next character at each step, shape (samples, characters, steps)."""

    def __init__(self, characters: int, steps: int, is_causal: bool) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, 64)
        self.positions = nn.Parameter(0.3 * torch.randn(steps, 64))
        layer = nn.TransformerEncoderLayer(64, 2, 128, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.next = nn.Linear(64, characters)
        self.mask = nn.Transformer.generate_square_subsequent_mask(steps) if is_causal else None

    def forward(self, texts: Tensor) -> Tensor:
        logits: Tensor = self.next(self.encoder(self.characters(texts) + self.positions, self.mask))
        return logits.transpose(1, 2)


@post(
    "tutorials 2478",
    ISSUE.format("pytorch/tutorials", 2478),
    fault="A language model without a mask sees the tokens that it is to predict.",
    fix="The causal mask.",
    port="24 characters each of scikit-learn's notes on its data in place of WikiText; two small layers; the score is"
    " on the last character, which is not in the input; 800 steps.",
    causes=("future_leak",),
)
def not_causal(fixed: bool) -> Program:
    written = "".join(loaded().DESCR for loaded in (load_iris, load_wine, load_diabetes, load_digits))
    alphabet = sorted(set(written))
    coded = torch.tensor([alphabet.index(character) for character in written])
    texts = coded.unfold(0, 25, 6)

    def score(outputs: Tensor, targets: Tensor) -> float:
        return accuracy(outputs[:, :, -1], targets[:, -1])

    net = Predictor(len(alphabet), 24, fixed)
    return Program(net, F.cross_entropy, texts[:, :-1], texts[:, 1:], adam(0.003), 32, 800, score)


# Layers, norms, optimizers and schedules


@post(
    "keras-deeplab 4",
    ISSUE.format("bonlime/keras-deeplab-v3-plus", 4),
    fault="A dropout of 0.9 before the last layer: the number was the share to keep.",
    fix="A dropout of 0.1.",
    port="Digits of 16x16 on noise, each pixel of ink to be given its digit, in place of photographs; a small net; 300"
    " steps.",
    causes=("dropout", "activation_scale"),
)
def kept(fixed: bool) -> Program:
    images, labels = digits(16)
    inked = (images > 100).squeeze(1)
    targets = torch.where(inked, labels[:, None, None] + 1, 0)
    net = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=2, dilation=2),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=4, dilation=4),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Dropout(0.1 if fixed else 0.9),
        nn.Conv2d(32, 11, 1),
    )

    def score(outputs: Tensor, targets: Tensor) -> float:
        return accuracy(outputs.movedim(1, -1)[targets > 0], targets[targets > 0])

    return Program(net, F.cross_entropy, images / 255, targets, adam(), 16, 300, score)


@post(
    "pretrained-models 5",
    ISSUE.format("Cadene/pretrained-models.pytorch", 5),
    fault="Batch norms with a momentum of 0 never update the statistics that evaluation uses.",
    fix="torch's default of 0.1.",
    port="A small net from its first draw in place of a pretrained Inception; digits of 16x16; 300 steps.",
    causes=("train_eval_gap",),
)
def no_momentum(fixed: bool) -> Program:
    images, labels = digits(16)
    layers: list[nn.Module] = []
    for inputs, outputs in ((1, 16), (16, 32), (32, 64)):
        norm = nn.BatchNorm2d(outputs, eps=0.001, momentum=0.1 if fixed else 0)
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), norm, nn.ReLU(), nn.MaxPool2d(2)]
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, 10))
    return Program(net, F.cross_entropy, images / 255, labels, adam(), 32, 300, accuracy)


@post(
    "SRGAN 94",
    ISSUE.format("leftthomas/SRGAN", 94),
    fault="A schedule that counts epochs, and divides the rate by 10 after 50 of 100, is stepped at each batch.",
    fix="It is stepped at each epoch.",
    port="The generator alone, with the mean square error; digits of 8x8 and 16x16; 14 of 100 epochs.",
    causes=("not_updated", "update_too_small"),
)
def stepped_by_batches(fixed: bool) -> Program:
    high = digits(16)[0] / 255
    net = nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2),
        nn.PReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.PReLU(),
        nn.Conv2d(32, 4, 3, padding=1),
        nn.PixelShuffle(2),
        nn.Tanh(),
    )

    def scheduled(parameters: Any) -> Any:
        optimizer = Adam(parameters)
        schedule = {"scheduler": StepLR(optimizer, 50, 0.1), "interval": "step", "frequency": 57 if fixed else 1}
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    low = F.avg_pool2d(high, 2)
    blurred = F.mse_loss(F.interpolate(low, scale_factor=2, mode="bilinear"), high)

    def score(outputs: Tensor, targets: Tensor) -> float:
        """0 for what is as good as interpolation, 1 for what is perfect."""
        return 1 - (F.mse_loss(outputs, targets) / blurred).item()

    return Program(net, F.mse_loss, low, high, scheduled, 32, 800, score)


class Hidden(nn.Module):
    """Layers of tanh, in a list that torch knows of or one that it does not, and a classifier after them."""

    def __init__(self, is_known: bool) -> None:
        super().__init__()
        layers = [nn.Linear(32, 64), nn.Linear(64, 64), nn.Linear(64, 64)]
        self.layers = nn.ModuleList(layers) if is_known else layers
        self.classifier = nn.Linear(64, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        for layer in self.layers:
            inputs = layer(inputs).tanh()
        classes: Tensor = self.classifier(inputs)
        return classes


@post(
    "pytorch 715",
    ISSUE.format("pytorch/pytorch", 715),
    fault="The hidden layers are in a plain list, so that the optimizer does not get their weights.",
    fix="A ModuleList.",
    port="Pairs of random vectors, of three classes by their product, in place of pairs of sentences; 1500 steps.",
    causes=("not_in_optimizer", "not_updated"),
)
def plain_list(fixed: bool) -> Program:
    pairs = torch.randn(3000, 2, 16)
    product = (pairs[:, 0, :4] * pairs[:, 1, :4]).sum(1)
    labels = (product > -0.8).long() + (product > 0.8).long()
    return Program(Hidden(fixed), F.cross_entropy, pairs.flatten(1), labels, adam(), 64, 1500, accuracy)


@post(
    "forum 89437",
    FORUM.format("failing-to-learn-a-quadratic-function-with-pytorch/89437"),
    fault="A rate of 1e-5 for numbers of 30 to 50, unscaled: the parabola comes out as a straight line.",
    fix="A rate of 0.001, and numbers of mean 0 and deviation 1.",
    port="Nothing: 21 numbers, three layers of 1000, and 200 steps. PYSIASSIST labels the post with hyperparameters;"
    " the numbers of the fix are ours.",
    causes=("learning_rate", "update_too_small", "input_scale"),
)
def parabola(fixed: bool) -> Program:
    across = torch.arange(30.0, 51).unsqueeze(1)
    net = nn.Sequential(
        nn.Linear(1, 1000),
        nn.ReLU(),
        nn.Linear(1000, 1000),
        nn.ReLU(),
        nn.Linear(1000, 1000),
        nn.ReLU(),
        nn.Linear(1000, 1),
    )
    summed = partial(F.l1_loss, reduction="sum")
    inputs = standardized(across) if fixed else across
    rate = 1e-3 if fixed else 1e-5
    return Program(net, summed, inputs, (across / 8 - 5) ** 2, partial(Adam, lr=rate), 21, 200, r2)
