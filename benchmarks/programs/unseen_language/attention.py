"""Masks, packed texts, and positions."""

from typing import Any

import torch
from benchmarks.programs.steps import PULL, Learner, case
from benchmarks.programs.unseen_language.common import Decoder, next_token_loss, written
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  # the usual name


@case(
    "transformers 38094",
    PULL.format("huggingface/transformers", 38094),
    kind="language model",
    fault="A mask of numbers, 0 where a token is seen and far below where not, is made one of truth values.",
    fix="It is used as it is.",
    port="A small transformer of random weights on chains of tokens in place of Llama 4.",
    causes="The mask is upside down, so that each token sees those after it and none of those before.",
    words=("mask", "future", "leak", "causal", "invert", "copy", "later"),
)
class MaskUpsideDown(Learner):
    steps = 200

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.following = torch.stack([torch.randperm(16), torch.randperm(16)])
        self.net = Decoder(16, 12, depth=2)

    def batch(self) -> Tensor:
        """Chains that go through one of two tables of successors, which the first token tells."""
        table = torch.randint(2, (64,))
        tokens = [table, torch.randint(16, (64,))]
        for _ in range(10):
            tokens.append(self.following[table, tokens[-1]])
        return torch.stack(tokens, 1)

    def logits(self, tokens: Tensor) -> Any:
        length = tokens.shape[1]
        causal_mask = torch.full((length, length), torch.finfo(torch.float32).min).triu(1)
        if not self.fixed:
            causal_mask = causal_mask.bool()  # fault
        return self.net(tokens, mask=causal_mask)

    def training_step(self, tokens: Tensor, batch_idx: int) -> Tensor:
        return next_token_loss(self.logits(tokens), tokens)

    def score(self) -> float:
        """The share of tokens that are written as they should be."""
        tokens = self.batch()
        return (written(self.logits, tokens[:, :2], 10) == tokens)[:, 2:].double().mean().item()


def numbered(lengths: Tensor) -> tuple[Tensor, Tensor]:
    """For each token of a row of texts of these lengths, its text and its position in it."""
    texts = torch.arange(len(lengths)).repeat_interleave(lengths)
    starts = lengths.cumsum(0) - lengths
    return texts, torch.arange(len(texts)) - starts[texts]


class Packed(Learner):
    """Rows of eight texts: a number, three to six tokens, and that one of them which the number tells."""

    steps = 120

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.net = Decoder(16, 64, depth=2)

    def text(self, size: int) -> Tensor:
        which, tokens = torch.randint(size, (1,)), torch.randint(16, (size,))
        return torch.cat([which, tokens, tokens[which]])

    def batch(self) -> tuple[Tensor, Tensor, Tensor]:
        """Rows of tokens; which text each is of, and where in it."""
        sizes = torch.tensor([3, 4, 5, 6]).repeat(2)
        rows = []
        for _ in range(16):
            order = sizes[torch.randperm(8)]
            rows.append((torch.cat([self.text(int(size)) for size in order]), *numbered(order + 2)))
        tokens, texts, places = (torch.stack(values) for values in zip(*rows, strict=True))
        return tokens, texts, places

    def loss(self, tokens: Tensor, texts: Tensor, places: Tensor, mask: Tensor | None) -> Tensor:
        last = F.pad(texts[:, 1:] != texts[:, :-1], (0, 1), value=True)
        labels = tokens.masked_fill(~last, -100)[:, 1:]
        return F.cross_entropy(self.net(tokens, places, mask)[:, :-1].flatten(0, 1), labels.flatten())

    def together(self, texts: Tensor) -> Tensor:
        """Which token may see which, so that it stays in its text and looks back."""
        length = texts.shape[1]
        same = texts.unsqueeze(1) == texts.unsqueeze(2)
        return (same & torch.ones(length, length, dtype=torch.bool).tril()).unsqueeze(1)

    def score(self) -> float:
        """The share of right answers in texts that stand alone."""
        right = []
        for size in (3, 4, 5, 6):
            tokens = torch.stack([self.text(size) for _ in range(128)])
            right.append((self.net(tokens[:, :-1])[:, -1].argmax(1) == tokens[:, -1]).double().mean().item())
        return sum(right) / 4


@case(
    "LlamaFactory 7318",
    PULL.format("hiyouga/LlamaFactory", 7318),
    kind="packed texts",
    fault="Positions go on from text to text in a row of several, of which each sees only itself.",
    fix="They begin again at each text.",
    port="Texts that ask for one of their tokens by its number, with learned positions in place of turned"
    " queries and keys.",
    causes="Positions are not counted from the start of each text, so that those a text alone has are hardly trained.",
    words=("position", "packed", "pack", "document", "text"),
)
class PositionsGoOn(Packed):
    def training_step(self, batch: tuple[Tensor, Tensor, Tensor], batch_idx: int) -> Tensor:
        tokens, texts, places = batch
        if not self.fixed:
            places = torch.arange(tokens.shape[1]).expand_as(tokens)  # fault
        return self.loss(tokens, texts, places, self.together(texts))


@case(
    "axolotl 131",
    PULL.format("axolotl-ai-cloud/axolotl", 131),
    kind="packed texts",
    fault="Texts are put in a row one after the other, and each sees those before it.",
    fix="The mask keeps them apart.",
    port="Texts that ask for one of their tokens by its number, with learned positions that begin at each text.",
    causes="Attention goes over several texts that were packed into a row, so that they are mixed.",
    words=("mask", "packed", "pack", "document", "mix", "attention", "cross"),
)
class SeesOtherTexts(Packed):
    def training_step(self, batch: tuple[Tensor, Tensor, Tensor], batch_idx: int) -> Tensor:
        tokens, texts, places = batch
        mask = self.together(texts) if self.fixed else None  # fault
        return self.loss(tokens, texts, places, mask)


@case(
    "unsloth 8253",
    PULL.format("unslothai/unsloth", 8253),
    kind="language model",
    fault="The size of the window is not passed to the attention that training uses.",
    fix="It is.",
    port="Three layers that see four tokens back, and texts that repeat what stood eight tokens before, in place of"
    " Mistral.",
    causes="In training attention sees all that was before, and where the model is used only a window of it.",
    words=("window", "mask", "attention", "evaluation", "validation", "gap"),
)
class NoWindow(Learner):
    steps = 400

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.net = Decoder(8, 24, depth=3)

    def batch(self) -> Tensor:
        return torch.randint(8, (64, 8)).repeat(1, 3)

    def logits(self, tokens: Tensor, window: int | None) -> Any:
        behind = torch.arange(tokens.shape[1]).unsqueeze(1) - torch.arange(tokens.shape[1])
        return self.net(tokens, mask=(behind >= 0) & (behind < (window or 24)))

    def training_step(self, tokens: Tensor, batch_idx: int) -> Tensor:
        return next_token_loss(self.logits(tokens, 4 if self.fixed else None), tokens)  # fault

    def score(self) -> float:
        tokens = self.batch()
        return (self.logits(tokens, 4)[:, 8:-1].argmax(2) == tokens[:, 9:]).double().mean().item()
