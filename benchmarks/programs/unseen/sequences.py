"""Language models, sequence to sequence, speech."""

from typing import Any

import torch
from benchmarks.programs.steps import ISSUE, PULL, Learner, case
from benchmarks.programs.unseen.common import Reader, accuracy, mlp, r2
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # the usual name
from torch.optim import Adam

Tokens = tuple[Tensor, Tensor]


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
    causes="The targets are one token too far away, so that the model learns the token after the next one.",
    words=("shift", "offset", "target", "next token"),
)
class TwiceShifted(Walker):
    def training_step(self, tokens: Tensor, batch_idx: int) -> Tensor:
        logits = self.net(tokens)
        if not self.fixed:
            logits, tokens = logits[:, :-1], tokens[:, 1:]  # fault
        return next_token_loss(logits, tokens)


@case(
    "transformers 27517",
    ISSUE.format("huggingface/transformers", 27517),
    kind="language model",
    fault="The labels are the inputs, and the loss does not shift them.",
    fix="The loss shifts them, as in the other models.",
    port="A small transformer on walks around a circle in place of MBart on text.",
    causes="The target of each position is its own input, so that the model only copies.",
    words=("shift", "copy", "copies", "leak", "target", "same as the input"),
)
class NotShifted(Walker):
    def training_step(self, tokens: Tensor, batch_idx: int) -> Tensor:
        logits = self.net(tokens)
        if self.fixed:
            return next_token_loss(logits, tokens)
        return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())  # fault


def reversals(samples: int, length: int, vocabulary: int = 8) -> Tokens:
    tokens = torch.randint(vocabulary, (samples, length))
    return tokens, tokens.flip(1)


@case(
    "anlp-fall2025-code 1",
    ISSUE.format("cmu-l3/anlp-fall2025-code", 1),
    kind="language model",
    fault="Positions are counted along the batch, so that all tokens of a text have the same one.",
    fix="They are counted along the text.",
    port="The transformer turns texts around in place of continuing names.",
    causes="The embedding of positions gets the index of the text in its batch, so that the order of tokens is lost.",
    words=("position", "order", "batch", "sample"),
)
class PlacesOfTexts(Learner):
    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.net = Reader(8, 32, causal=False)

    def batch(self) -> Tokens:
        return reversals(32, 8)

    def logits(self, tokens: Tensor) -> Any:
        texts, length = tokens.shape
        return self.net(tokens, torch.arange(length) if self.fixed else torch.arange(texts).unsqueeze(1))  # fault

    def training_step(self, batch: Tokens, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.logits(batch[0]).flatten(0, 1), batch[1].flatten())

    def score(self) -> float:
        tokens, reverse = self.batch()
        return accuracy(self.logits(tokens), reverse)


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
    causes="Heads and positions are exchanged by view(), so that attention mixes them and sees a part of the text.",
    words=("view", "reshape", "transpose", "permute", "mix", "position", "attention"),
)
class ViewedHeads(Learner):
    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.tokens, self.places = nn.Embedding(8, 32), nn.Embedding(8, 32)
        self.attention = Heads(32, 4, fixed)  # fault
        self.head = mlp(32, 64, 8)

    def batch(self) -> Tokens:
        return reversals(32, 8)

    def forward(self, tokens: Tensor) -> Any:
        seen = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        return self.head(seen + self.attention(seen))

    def training_step(self, batch: Tokens, batch_idx: int) -> Tensor:
        return F.cross_entropy(self(batch[0]).flatten(0, 1), batch[1].flatten())

    def score(self) -> float:
        tokens, reverse = reversals(256, 8)
        return accuracy(self(tokens), reverse)


@case(
    "Molecule-Generator 20",
    PULL.format("DaoyuanLi2816/Molecule-Generator", 20),
    kind="VAE",
    fault="The cross entropy is averaged over all positions, most of which are padding.",
    fix="Padding is ignored.",
    port="Texts of three to six tokens, padded to 40, in place of molecules; a plain VAE.",
    causes="Padding is in the loss, so that it outweighs the tokens, and the divergence outweighs both.",
    words=("pad", "constant", "collapse", "posterior", "ignore"),
)
class PaddedTexts(Learner):
    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.tokens = nn.Embedding(8, 16)
        self.encoder = nn.GRU(16, 32, batch_first=True)
        self.coder = nn.Linear(32, 32)
        self.decoder = mlp(16, 64, 40 * 8)

    def batch(self) -> Tensor:
        lengths = torch.randint(3, 7, (64, 1))
        return torch.randint(1, 8, (64, 40)) * (torch.arange(40) < lengths)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        _, last = self.encoder(self.tokens(tokens[:, :6]))
        means, logs = self.coder(last[0]).chunk(2, 1)
        drawn = means + (logs / 2).exp() * torch.randn_like(means) if self.training else means
        return self.decoder(drawn).view(-1, 40, 8), means, logs

    def training_step(self, tokens: Tensor, batch_idx: int) -> Tensor:
        logits, means, logs = self(tokens)
        ignored = 0 if self.fixed else -100  # fault
        error = F.cross_entropy(logits.flatten(0, 1), tokens.flatten(), ignore_index=ignored)
        divergence = (means.square() + logs.exp() - 1 - logs).mean() / 2
        return error + 0.2 * divergence

    def score(self) -> float:
        """The share of tokens that are read back right, without the padding."""
        tokens = self.batch()
        return accuracy(self(tokens)[0][tokens > 0], tokens[tokens > 0])


@case(
    "voicebox-pytorch 6",
    ISSUE.format("lucidrains/voicebox-pytorch", 6),
    kind="speech",
    fault="The error of the masked part is set to 0, and what could be seen is left.",
    fix="The error of the other part is set to 0.",
    port="Infilling of waves by regression in place of speech by flow matching.",
    causes="The mask of the loss is the wrong way around: only what was given as input is trained.",
    words=("mask", "copy", "copies", "leak", "unseen"),
)
class Infilling(Learner):
    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.net = mlp(64, 128, 128, 32)

    def batch(self) -> Tokens:
        waves = torch.sin((0.3 + torch.rand(64, 1) / 2) * torch.arange(32) + 6.3 * torch.rand(64, 1))
        after = torch.arange(32) - torch.randint(25, (64, 1))
        return waves, (after >= 0) & (after < 8)

    def forward(self, waves: Tensor, hidden: Tensor) -> Any:
        return self.net(torch.cat([waves.masked_fill(hidden, 0.0), hidden.float()], 1))

    def training_step(self, batch: Tokens, batch_idx: int) -> Tensor:
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
    causes="The optimizer has the parameters of another model, so that the one that is used stays as it was made.",
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

    def batch(self) -> Tokens:
        languages = torch.randint(4, (64,))
        return torch.multinomial(self.habits[languages], 12, replacement=True), languages

    def forward(self, texts: Tensor) -> Any:
        return self.rnn["out"](self.rnn["rnn"](self.rnn["in"](texts))[1][0])

    def training_step(self, batch: Tokens, batch_idx: int) -> Tensor:
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
    causes="Attention goes over the rows of the batch, not over the columns of a row: samples are mixed.",
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

    def batch(self) -> Tokens:
        tokens = torch.randint(16, (32, 6))
        return tokens, tokens.max(1, keepdim=True).values.expand(-1, 6)

    def forward(self, tokens: Tensor) -> Any:
        seen = self.tokens(tokens)
        if self.fixed:
            return self.head(self.layers(seen.transpose(0, 1)).transpose(0, 1))
        return self.head(self.layers(seen))  # fault

    def training_step(self, batch: Tokens, batch_idx: int) -> Tensor:
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
    causes="The loss takes logits for log-probabilities, so that it falls without end as they all grow.",
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
