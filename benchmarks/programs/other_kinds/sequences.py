"""Texts, speech and time series."""

from typing import Any

import torch
from benchmarks.programs.other_kinds.common import Pair, Reader, mlp
from benchmarks.programs.parts import accuracy, r2
from benchmarks.programs.program import ISSUE, PULL, Learner, case, healthy
from sklearn.datasets import load_iris  # type: ignore[import-untyped]  # has no stubs
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # the usual name
from torch.optim import SGD, Adam, AdamW


def walks(samples: int, length: int, places: int = 17) -> Tensor:
    """Texts that go around a circle of tokens by one to three at a time, each at its own pace."""
    paces = torch.randint(1, 4, (samples, 1))
    return (torch.randint(places, (samples, 1)) + paces * torch.arange(length)) % places


class Walker(Learner):
    """A language model of walks."""

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.net = Reader(17, 12)

    def batch(self) -> Tensor:
        return walks(32, 12)

    def score(self) -> float:
        """The share of next tokens that are right, once the pace can be known."""
        tokens = walks(256, 12)
        return accuracy(self.net(tokens)[:, 1:-1], tokens[:, 2:])


def next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """The cross entropy of each token, given those before it; it shifts them itself."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


@case(
    "transformers 37830",
    PULL.format("huggingface/transformers", 37830),
    kind="language model",
    fault="The logits are shifted against the labels, and the loss shifts them once more.",
    fix="Only the loss shifts.",
    port="A small transformer on walks around a circle in place of JetMoe on text.",
    words=("shift", "offset", "target", "next token"),
)
class TwiceShifted(Walker):
    def training_step(self, tokens: Tensor, batch_idx: int) -> Tensor:
        logits = self.net(tokens)
        if not self.fixed:
            logits, tokens = logits[:, :-1], tokens[:, 1:]  # fault
        return next_token_loss(logits, tokens)


def reversals(samples: int, length: int, vocabulary: int = 8) -> Pair:
    tokens = torch.randint(vocabulary, (samples, length))
    return tokens, tokens.flip(1)


class Heads(nn.Module):
    """Attention with several heads, which are told apart by transpose(), or by view()."""

    def __init__(self, width: int, heads: int, fixed: bool) -> None:
        super().__init__()
        self.heads, self.fixed = heads, fixed
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def split(self, values: Tensor) -> Tensor:
        texts, length, width = values.shape
        if self.fixed:
            return values.view(texts, length, self.heads, -1).transpose(1, 2)
        return values.view(texts, self.heads, length, width // self.heads)

    def forward(self, values: Tensor) -> Any:
        query, key, value = (self.split(layer(values)) for layer in (self.query, self.key, self.value))
        found = F.scaled_dot_product_attention(query, key, value)
        return self.out((found.transpose(1, 2) if self.fixed else found).reshape(values.shape))


@case(
    "Informer2020 59",
    ISSUE.format("zhouhaoyi/Informer2020", 59),
    kind="sequence to sequence",
    fault="view() exchanges heads and positions in attention, which does not move the numbers.",
    fix="transpose().",
    port="Full attention that turns texts around, in place of sparse attention that forecasts.",
    words=("view", "reshape", "transpose", "permute", "mix", "position", "attention"),
)
class ViewedHeads(Learner):
    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.tokens, self.places = nn.Embedding(8, 32), nn.Embedding(8, 32)
        self.attention = Heads(32, 4, fixed)  # fault
        self.head = mlp(32, 64, 8)

    def batch(self) -> Pair:
        return reversals(32, 8)

    def forward(self, tokens: Tensor) -> Any:
        seen = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        return self.head(seen + self.attention(seen))

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        return F.cross_entropy(self(batch[0]).flatten(0, 1), batch[1].flatten())

    def score(self) -> float:
        tokens, reverse = reversals(256, 8)
        return accuracy(self(tokens), reverse)


@case(
    "voicebox-pytorch 6",
    ISSUE.format("lucidrains/voicebox-pytorch", 6),
    kind="speech",
    fault="The error of the masked part is set to 0, and what could be seen is left.",
    fix="The error of the other part is set to 0.",
    port="Infilling of waves by regression in place of speech by flow matching.",
    words=("mask", "copy", "copies", "leak", "unseen"),
)
class Infilling(Learner):
    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.net = mlp(64, 128, 128, 32)

    def batch(self) -> Pair:
        waves = torch.sin((0.3 + torch.rand(64, 1) / 2) * torch.arange(32) + 6.3 * torch.rand(64, 1))
        after = torch.arange(32) - torch.randint(25, (64, 1))
        return waves, (after >= 0) & (after < 8)

    def forward(self, waves: Tensor, hidden: Tensor) -> Any:
        return self.net(torch.cat([waves.masked_fill(hidden, 0.0), hidden.float()], 1))

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        waves, hidden = batch
        error = (self(waves, hidden) - waves).square()
        error = error.masked_fill(~hidden if self.fixed else hidden, 0.0)  # fault
        return (error.sum(1) / hidden.sum(1)).mean()

    def score(self) -> float:
        waves, hidden = self.batch()
        return r2(self(waves, hidden)[hidden], waves[hidden])


@case(
    "practical-pytorch 9",
    ISSUE.format("spro/practical-pytorch", 9),
    kind="classification of texts",
    fault="The model is made a second time after the optimizer, which holds the parameters of the first.",
    fix="The optimizer is made after the second.",
    port="Texts of four invented languages in place of names.",
    words=("optimizer", "not updated", "never", "unchanged", "parameters"),
)
class MadeTwice(Learner):
    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.habits = torch.rand(4, 12).pow(2)
        self.rnn = self.made()
        self.held = [*self.rnn.parameters()]  # fault
        self.rnn = self.made()
        if fixed:
            self.held = [*self.rnn.parameters()]

    def made(self) -> nn.ModuleDict:
        return nn.ModuleDict({"in": nn.Embedding(12, 16), "rnn": nn.GRU(16, 32, batch_first=True), "out": mlp(32, 4)})

    def configure_optimizers(self) -> Any:
        return Adam(self.held, self.rate)

    def batch(self) -> Pair:
        languages = torch.randint(4, (64,))
        return torch.multinomial(self.habits[languages], 12, replacement=True), languages

    def forward(self, texts: Tensor) -> Any:
        return self.rnn["out"](self.rnn["rnn"](self.rnn["in"](texts))[1][0])

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        return F.cross_entropy(self(batch[0]), batch[1])

    def score(self) -> float:
        texts, languages = self.batch()
        return accuracy(self(texts), languages)


@case(
    "TabFormer 14",
    PULL.format("IBM/TabFormer", 14),
    kind="tables as text",
    fault="A transformer that wants the batch second gets it first.",
    fix="The batch is moved to the second place and back.",
    port="Each position is to give the greatest token of its row, in place of transactions.",
    words=("batch", "sample", "mix", "transpose", "batch_first"),
)
class BatchSecond(Learner):
    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.tokens = nn.Embedding(16, 32)
        self.layers = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0), 2, enable_nested_tensor=False
        )
        self.head = nn.Linear(32, 16)

    def batch(self) -> Pair:
        tokens = torch.randint(16, (32, 6))
        return tokens, tokens.max(1, keepdim=True).values.expand(-1, 6)

    def forward(self, tokens: Tensor) -> Any:
        seen = self.tokens(tokens)
        if self.fixed:
            return self.head(self.layers(seen.transpose(0, 1)).transpose(0, 1))
        return self.head(self.layers(seen))  # fault

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        return F.cross_entropy(self(batch[0]).flatten(0, 1), batch[1].flatten())

    def score(self) -> float:
        tokens, greatest = self.batch()
        return accuracy(self(tokens), greatest)


def spoken(samples: int) -> tuple[Tensor, Tensor]:
    """Noisy frames in which each of three sounds of five lasts for three to five frames, and the sounds."""
    steps = torch.randint(1, 5, (samples, 3)).cumsum(1)
    sounds = steps % 5 + 1
    ends = torch.randint(3, 6, (samples, 3)).cumsum(1)
    now = (torch.arange(16).view(1, -1, 1) >= ends.unsqueeze(1)).sum(2)
    heard = F.pad(sounds, (0, 1)).gather(1, now)
    return F.one_hot(heard, 6) + 0.4 * torch.randn(samples, 16, 6), sounds


def read_off(logits: Tensor) -> list[list[int]]:
    """The best symbol of each frame, repetitions and blanks left out."""
    best = [torch.unique_consecutive(row) for row in logits.argmax(-1)]
    return [row[row > 0].tolist() for row in best]


@case(
    "STARS 9",
    ISSUE.format("gwx314/STARS", 9),
    kind="CTC",
    fault="ctc_loss gets logits.",
    fix="log_softmax() first.",
    port="Frames of five invented sounds in place of singing.",
    words=("log_softmax", "log-prob", "normal", "negative", "logit", "unbounded"),
)
class Sounds(Learner):
    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.net = nn.Sequential(nn.Conv1d(6, 32, 3, padding=1), nn.ReLU(), nn.Conv1d(32, 6, 3, padding=1))

    def batch(self) -> tuple[Tensor, Tensor]:
        return spoken(32)

    def forward(self, frames: Tensor) -> Any:
        return self.net(frames.transpose(1, 2)).transpose(1, 2)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        frames, sounds = batch
        logits = self(frames).transpose(0, 1)
        likely = logits.log_softmax(-1) if self.fixed else logits  # fault
        heard, said = torch.full((len(frames),), 16), torch.full((len(frames),), 3)
        return F.ctc_loss(likely, sounds, heard, said)

    def score(self) -> float:
        frames, sounds = spoken(256)
        right = [read == said for read, said in zip(read_off(self(frames)), sounds.tolist(), strict=True)]
        return sum(right) / len(right)


@case(
    "time-series-autoencoder 14",
    ISSUE.format("JulesBelveze/time-series-autoencoder", 14),
    kind="time series",
    fault="The decoder without attention gets the past of the target, and nothing of the encoder.",
    fix="It starts from the encoded state.",
    port="Two inputs, of which the target is the running sum of products and noise; GRUs in place of LSTMs.",
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
    "darts 1162",
    PULL.format("unit8co/darts", 1162),
    kind="probabilistic forecast",
    fault="GaussianNLLLoss gets the standard deviation where it wants the variance.",
    fix="The square of it.",
    port="The next value of a noisy wave, with noise that is told by one more input; a network of two layers.",
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
