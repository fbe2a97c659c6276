"""Tokens, waves and other series."""

import math
from typing import Any

import torch
from benchmarks.programs.steps import ISSUE, PULL, Learner, case
from benchmarks.programs.unseen.common import Reader, accuracy, mlp, r2
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # the usual name
from torch.optim import SGD

Pair = tuple[Tensor, Tensor]


def waves(samples: int, length: int) -> Tensor:
    """Noisy sines of any pace and phase."""
    paces, steps = 0.3 + torch.rand(samples, 1) / 2, torch.arange(length)
    return torch.sin(paces * steps + 6.3 * torch.rand(samples, 1)) + 0.3 * torch.randn(samples, length)


@case(
    "pytorch-lightning 19138",
    ISSUE.format("Lightning-AI/pytorch-lightning", 19138),
    kind="transformer",
    fault="The sum of the inputs and the encodings of positions is computed, and not assigned.",
    fix="It is assigned.",
    port="Tokens that are to be given in reverse order in place of the language of a book; the shapes of the encodings,"
    " which were wrong as well, are right.",
    causes="The encodings of positions are never added, so that the transformer cannot tell one place from another.",
    words=("position", "unused", "never used", "order", "not used", "dead"),
)
class NotAssigned(Learner):
    rate = 0.002

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.tokens = nn.Embedding(12, 32)
        angles = torch.arange(8).unsqueeze(1) * torch.exp(-math.log(1e4) * torch.arange(0, 32, 2) / 32)
        self.register_buffer("places", torch.cat([angles.sin(), angles.cos()], 1))
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(32, 12)

    def batch(self) -> Tensor:
        return torch.randint(12, (64, 8))

    def forward(self, tokens: Tensor) -> Any:
        seen = self.tokens(tokens)
        placed = seen + self.places
        return self.head(self.layers(placed if self.fixed else seen))  # fault

    def training_step(self, tokens: Tensor, batch_idx: int) -> Tensor:
        return F.cross_entropy(self(tokens).flatten(0, 1), tokens.flip(1).flatten())

    def score(self) -> float:
        tokens = self.batch()
        return accuracy(self(tokens), tokens.flip(1))


@case(
    "PaddleNLP 5339",
    PULL.format("PaddlePaddle/PaddleNLP", 5339),
    kind="language model",
    fault="The loss is taken over all tokens that are no padding.",
    fix="Over those of the loss mask, which are the answer.",
    port="20 random tokens and their two greatest in place of texts; a small transformer in torch in place of GLM.",
    causes="The loss goes over the prompt as well, which cannot be predicted and outweighs the answer.",
    words=("mask", "prompt", "plateau", "noise", "unpredictable", "position"),
)
class PromptToo(Learner):
    rate = 0.004
    steps = 200

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.net = Reader(32, 21, depth=1)

    def batch(self) -> tuple[Tensor, Tensor]:
        prompt = torch.randint(32, (64, 20))
        tokens = torch.cat([prompt, prompt.topk(2, 1).values], 1)
        return tokens, (torch.arange(22) >= 20).expand(64, -1)

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        tokens, is_answer = batch
        losses = F.cross_entropy(self.net(tokens[:, :-1]).transpose(1, 2), tokens[:, 1:], reduction="none")
        mask = (is_answer if self.fixed else torch.ones_like(is_answer))[:, 1:]  # fault
        return (losses * mask).sum() / mask.sum()

    def score(self) -> float:
        tokens = torch.cat([self.batch()[0] for _ in range(8)])
        return accuracy(self.net(tokens[:, :-1])[:, -2:], tokens[:, -2:])


@case(
    "time-series-autoencoder 14",
    ISSUE.format("JulesBelveze/time-series-autoencoder", 14),
    kind="time series",
    fault="The decoder without attention gets the past of the target, and nothing of the encoder.",
    fix="It starts from the encoded state.",
    port="Two inputs, of which the target is the running sum of products and noise; GRUs in place of LSTMs.",
    causes="The decoder does not use the encoder, which gets no gradient and is not trained.",
    words=("encoder", "no gradient", "unused", "never", "not updated", "unchanged"),
)
class WithoutEncoder(Learner):
    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.encoder, self.decoder = nn.GRU(2, 32, batch_first=True), nn.GRU(1, 32, batch_first=True)
        self.head = nn.Linear(32, 1)

    def batch(self) -> tuple[Tensor, Tensor, Tensor]:
        """Two inputs, the noisy past of the target, and what it is to be."""
        inputs = torch.randn(64, 10, 2)
        sums = inputs.prod(2).cumsum(1) / 3 + inputs.sum((1, 2), keepdim=False).unsqueeze(1) / 4
        return inputs, (sums[:, :-1] + 3 * torch.randn(64, 9)).unsqueeze(2), sums[:, -1:]

    def forward(self, inputs: Tensor, past: Tensor) -> Any:
        _, state = self.encoder(inputs)
        outputs, _ = self.decoder(past, state if self.fixed else None)  # fault
        return self.head(outputs[:, -1])

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor], batch_idx: int) -> Tensor:
        return F.mse_loss(self(*batch[:2]), batch[2])

    def score(self) -> float:
        batches = [self.batch() for _ in range(8)]
        inputs, past, wanted = (torch.cat(values) for values in zip(*batches, strict=True))
        return r2(self(inputs, past), wanted)


@case(
    "keras-io 1003",
    ISSUE.format("keras-team/keras-io", 1003),
    kind="time series",
    fault="The last convolution goes over time with as much padding after as before.",
    fix="All padding is before: a causal one.",
    port="Waves in place of films, and a GRU in place of convolutional LSTMs; torch in place of Keras. What"
    " the maintainers said is not in the copy at hand; a second reader confirmed it.",
    causes="The output at each time sees the input of the next, which is its target, and copies it.",
    words=("future", "leak", "copy", "copies", "causal", "target", "input"),
)
class SeesNext(Learner):
    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.rnn, self.last = nn.GRU(1, 32, batch_first=True), nn.Conv1d(32, 1, 3)

    def batch(self) -> Tensor:
        return waves(64, 25)

    def forward(self, inputs: Tensor) -> Any:
        states = self.rnn(inputs.unsqueeze(2))[0].transpose(1, 2)
        return self.last(F.pad(states, (2, 0) if self.fixed else (1, 1))).squeeze(1)  # fault

    def training_step(self, series: Tensor, batch_idx: int) -> Tensor:
        return F.mse_loss(self(series[:, :-1]), series[:, 1:])

    def score(self) -> float:
        """How much is explained of six values, of which each is predicted when those before have been."""
        series = waves(1024, 24)
        known = series[:, :18]
        for _ in range(6):
            known = torch.cat([known, self(known)[:, -1:]], 1)
        return r2(known[:, 18:], series[:, 18:])


@case(
    "pytorch-forecasting 182",
    ISSUE.format("sktime/pytorch-forecasting", 182),
    kind="time series",
    fault="The decoder's inputs contain the true target of the step that it is to predict.",
    fix="They contain that of the step before.",
    port="Waves in place of sales; the mean is predicted, not a distribution; the inputs of the decoder are shifted by"
    " one, where the index of the target was wrong.",
    causes="The target is among the inputs, so that the network copies it and cannot predict.",
    words=("target", "leak", "copy", "copies", "input", "identity"),
)
class TargetAmongInputs(Learner):
    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.rnn, self.head = nn.GRU(1, 32, batch_first=True), nn.Linear(32, 1)

    def batch(self) -> Tensor:
        return waves(64, 20)

    def forward(self, inputs: Tensor, state: Tensor | None = None) -> Any:
        outputs, state = self.rnn(inputs.unsqueeze(2), state)
        return self.head(outputs).squeeze(2), state

    def training_step(self, series: Tensor, batch_idx: int) -> Tensor:
        _, state = self(series[:, :13])
        inputs = series[:, 13:-1] if self.fixed else series[:, 14:]  # fault
        return F.mse_loss(self(inputs, state)[0], series[:, 14:])

    def score(self) -> float:
        """How much is explained of six values, of which each is predicted from the one that was predicted before."""
        series = waves(1024, 20)
        _, state = self(series[:, :13])
        last, found = series[:, 13:14], []
        for _ in range(6):
            last, state = self(last, state)
            found.append(last)
        return r2(torch.cat(found, 1), series[:, 14:])


@case(
    "pandas-ml-quant 25",
    ISSUE.format("KIC/pandas-ml-quant", 25),
    kind="time series",
    fault="The target is shifted forward, and is thus the value before.",
    fix="It is shifted backward.",
    port="Waves in place of prices, in torch in place of Keras.",
    causes="The target is a value of the past that is among the inputs, so that nothing is learned of what comes.",
    words=("target", "input", "copy", "copies", "leak", "identity", "shift"),
)
class WrongShift(Learner):
    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.net = mlp(12, 64, 64, 1)

    def batch(self) -> Pair:
        series = waves(64, 14)
        return series[:, 1:-1], torch.roll(series, -1 if self.fixed else 1, 1)[:, -2:-1]  # fault

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        return F.mse_loss(self.net(batch[0]), batch[1])

    def score(self) -> float:
        """How much is explained of the value that follows."""
        series = waves(1024, 14)
        return r2(self.net(series[:, 1:-1]), series[:, -1:])


@case(
    "darts 1162",
    PULL.format("unit8co/darts", 1162),
    kind="probabilistic forecast",
    fault="GaussianNLLLoss gets the standard deviation where it wants the variance.",
    fix="The square of it.",
    port="The next value of a noisy wave, with noise that is told by one more input; a network of two layers.",
    causes="What is used as the standard deviation becomes the variance, so that forecasts are far too sure.",
    words=("variance", "deviation", "sigma", "calibrat", "scale", "likelihood"),
)
class DeviationAsVariance(Learner):
    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.net = mlp(9, 64, 64, 2)

    def batch(self) -> Pair:
        noise, steps = 0.1 + 0.3 * torch.rand(128, 1), torch.arange(9)
        series = torch.sin(0.5 * steps + 6.3 * torch.rand(128, 1)) + noise * torch.randn(128, 9)
        return torch.cat([series[:, :8], noise], 1), series[:, 8]

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        means, spreads = self.net(inputs).unbind(1)
        return means, F.softplus(spreads)

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        means, deviations = self(batch[0])
        return F.gaussian_nll_loss(means, batch[1], deviations.square() if self.fixed else deviations)  # fault

    def score(self) -> float:
        """1 if 90 % of the values are in the interval that 90 % should be in, and less by each that is missing."""
        batches = [self.batch() for _ in range(16)]
        inputs, wanted = (torch.cat(values) for values in zip(*batches, strict=True))
        means, deviations = self(inputs)
        inside = ((wanted - means).abs() < 1.645 * deviations).double().mean().item()
        return 1 - abs(inside - 0.9)


@case(
    "UMS-ResSel 3",
    ISSUE.format("taesunwhang/UMS-ResSel", 3),
    kind="recurrent network",
    fault="Gradients are clipped after the optimizer's step.",
    fix="Before it.",
    port="A recurrent network that gives the mean of 20 numbers, of which some batches are far too loud, with SGD, in"
    " place of BERT with AdamW.",
    causes="Clipping has no effect, as the step was taken before, so that loud batches throw the weights far off.",
    words=("clip", "explod", "spike", "diverge", "large gradient", "grow"),
)
class ClippedAfter(Learner):
    rate = 0.03
    steps = 400

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.automatic_optimization = False
        self.rnn, self.head = nn.GRU(1, 32, batch_first=True), nn.Linear(32, 1)

    def configure_optimizers(self) -> Any:
        return SGD(self.parameters(), self.rate, momentum=0.9)

    def batch(self) -> Pair:
        series = torch.randn(32, 20, 1)
        loud = 50.0 if torch.rand(()) < 0.03 else 1.0
        return loud * series, 4 * loud * series.mean(1)

    def training_step(self, batch: Pair, batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(F.mse_loss(self.head(self.rnn(batch[0])[1][0]), batch[1]))
        if self.fixed:
            nn.utils.clip_grad_norm_(self.parameters(), 1.0)
        optimizer.step()
        if not self.fixed:
            nn.utils.clip_grad_norm_(self.parameters(), 1.0)  # fault

    def score(self) -> float:
        """How much of the target is explained in batches that are not too loud."""
        series = torch.randn(1024, 20, 1)
        return r2(self.head(self.rnn(series)[1][0]), series.mean(1) * 4)
