"""Fine-tuning, preferences and rewards of small language models."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from benchmarks.programs.other_kinds.common import Pair, Reader
from benchmarks.programs.parts import accuracy
from benchmarks.programs.program import PULL, Learner, case, healthy
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # the usual name
from torch.optim import Adam, AdamW
from torch.optim.lr_scheduler import OneCycleLR


def sequences(steps: Tensor) -> Tensor:
    """Texts in which each token is the one before and so much more, around a circle of 16."""
    return (torch.randint(16, (len(steps), 1)) + steps.unsqueeze(1) * torch.arange(8)) % 16


class Attention(nn.Module):
    """Attention of four heads, which looks only back unless it is given a mask."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> Any:
        texts, length, width = inputs.shape
        query, key, value = (
            layer(inputs).view(texts, length, 4, -1).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        found = F.scaled_dot_product_attention(query, key, value, mask, is_causal=mask is None)
        return self.out(found.transpose(1, 2).reshape(texts, length, width))


class Block(nn.Module):
    """A layer of a transformer, with its norms first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> Any:
        inputs = inputs + self.attention(self.before_attention(inputs), mask)
        return inputs + self.mlp(self.before_mlp(inputs))


class Decoder(nn.Module):
    """A small language model as GPT-2 is.

    Args:
        vocabulary: how many tokens there are.
        longest: how many positions there are.
        depth: how many layers.
        outputs: how many numbers it gives for each token; None for as many as there are tokens.
    """

    def __init__(self, vocabulary: int, longest: int, depth: int = 1, outputs: int | None = None) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, 32), nn.Embedding(longest, 32)
        self.blocks = nn.ModuleList(Block(32) for _ in range(depth))
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, vocabulary if outputs is None else outputs, bias=False)

    def forward(self, tokens: Tensor, places: Tensor | None = None, mask: Tensor | None = None) -> Any:
        states = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]) if places is None else places)
        for block in self.blocks:
            states = block(states, mask)
        return self.head(self.norm(states))


def next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """The cross entropy of each token but the first, given those before it."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def taught(net: nn.Module, loss: Callable[[], Tensor], steps: int, rate: float = 0.003) -> None:
    """Train a model that is then the pretrained one."""
    optimizer = Adam([value for value in net.parameters() if value.requires_grad], rate)
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()


@case(
    "transformers 45079",
    PULL.format("huggingface/transformers", 45079),
    kind="fine-tuning",
    fault="The head that was made when the vocabulary grew counts as not initialized, and is drawn anew.",
    fix="It is marked as initialized.",
    port="A small model that counts by ones, with one more token to end a text, and a short fine-tuning; what draws"
    " anew is written out.",
    words=("init", "random", "head", "pretrained", "chance", "start", "reset"),
)
class HeadDrawnAnew(Learner):
    steps = 30
    rate = 0.0003

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.net = Decoder(16, 9)
        taught(self.net, lambda: next_token_loss(self.net(tokens := sequences(torch.ones(64).long())), tokens), 200)
        old_tokens, old_head = self.net.tokens, self.net.head
        self.net.tokens, self.net.head = nn.Embedding(17, 32), nn.Linear(32, 17, bias=False)
        with torch.no_grad():
            self.net.tokens.weight[:16], self.net.head.weight[:16] = old_tokens.weight, old_head.weight
            self.net.head.weight[16] = old_head.weight.mean(0)
        initialized = {self.net.tokens, self.net.head} if fixed else {self.net.tokens}  # fault
        if self.net.head not in initialized:
            nn.init.normal_(self.net.head.weight, std=0.02)

    def batch(self) -> Tensor:
        return F.pad(sequences(torch.ones(64).long()), (0, 1), value=16)

    def training_step(self, tokens: Tensor, batch_idx: int) -> Tensor:
        return next_token_loss(self.net(tokens), tokens)

    def score(self) -> float:
        tokens = self.batch()
        return accuracy(self.net(tokens)[:, :-1], tokens[:, 1:])


def log_likely(logits: Tensor, tokens: Tensor) -> Tensor:
    """The log-probability of each token but the first."""
    return logits[:, :-1].log_softmax(2).gather(2, tokens[:, 1:].unsqueeze(2)).squeeze(2)


@case(
    "AReaL 1369",
    PULL.format("areal-project/AReaL", 1369),
    kind="precision",
    fault="The weights are of bfloat16, and so are the states of the optimizer.",
    fix="The weights that the optimizer holds are of float32.",
    port="A small model that counts by ones and is to count by threes, at a small rate, with autocast where the fix"
    " has FSDP's policy.",
    words=("bfloat16", "bf16", "round", "precision", "update", "unchanged", "rate"),
)
class RoundedAway(Learner):
    steps = 250
    rate = 0.0002

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.net = Decoder(16, 8)
        taught(self.net, lambda: next_token_loss(self.net(tokens := sequences(torch.ones(64).long())), tokens), 200)
        self.net.to(torch.float32 if fixed else torch.bfloat16)  # fault

    def batch(self) -> Tensor:
        return sequences(torch.full((64,), 3))

    def training_step(self, tokens: Tensor, batch_idx: int) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            logits = self.net(tokens)
        return next_token_loss(logits.float(), tokens)

    def score(self) -> float:
        """The mean probability of the token that comes."""
        tokens = self.batch()
        return log_likely(self.net(tokens).float(), tokens).exp().mean().item()


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
    words=("position", "packed", "pack", "document", "text"),
)
class PositionsGoOn(Packed):
    def training_step(self, batch: tuple[Tensor, Tensor, Tensor], batch_idx: int) -> Tensor:
        tokens, texts, places = batch
        if not self.fixed:
            places = torch.arange(tokens.shape[1]).expand_as(tokens)  # fault
        return self.loss(tokens, texts, places, self.together(texts))


def answers(prompts: Tensor, right: bool) -> Tensor:
    """Prompts of three tokens, an answer of one to four times the second, a last token, and padding, which is 0."""
    length = torch.randint(1, 5, (len(prompts), 1))
    body = prompts[:, 1:2].expand(-1, 5)
    wanted = prompts[:, :1]
    last = wanted if right else (wanted - 1 + torch.randint(1, 9, wanted.shape)) % 9 + 1
    places = torch.arange(5)
    return torch.cat([prompts, torch.where(places < length, body, torch.where(places == length, last, 0))], 1)


class AnswerPairs(Learner):
    """Two answers to a prompt; the better one ends with the first token of the prompt."""

    def batch(self) -> Pair:
        prompts = torch.randint(1, 10, (64, 3))
        return answers(prompts, True), answers(prompts, False)

    def imitation(self) -> Tensor:
        """The loss of a model that writes both, which comes before."""
        tokens = torch.cat(self.batch())
        labels = tokens[:, 1:].masked_fill(tokens[:, 1:] == 0, -100)
        return F.cross_entropy(self.net(tokens)[:, :-1].flatten(0, 1), labels.flatten())


@case(
    "gpt-neox 1285",
    PULL.format("EleutherAI/gpt-neox", 1285),
    kind="reward model",
    fault="The reward is read one place before the last token of an answer.",
    fix="At the last token.",
    port="A small model, and answers of which the last token tells whether they are good, as the one that ends a"
    " text does not in a small vocabulary.",
    words=("position", "last", "plateau", "chance", "stuck", "constant", "0.69", "index", "token", "not learn"),
)
class OneBeforeLast(AnswerPairs):
    steps = 300

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.net = Decoder(10, 8, depth=2, outputs=1)

    def reward(self, texts: Tensor) -> Tensor:
        last = (texts > 0).sum(1) - (1 if self.fixed else 2)  # fault
        return self.net(texts).squeeze(2)[torch.arange(len(texts)), last]

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        chosen, rejected = (self.reward(texts) for texts in batch)
        return -F.logsigmoid(chosen - rejected).mean()

    def score(self) -> float:
        """How often the better answer has the greater reward."""
        pairs = [self.batch() for _ in range(8)]
        return sum((self.reward(good) > self.reward(bad)).double().mean().item() for good, bad in pairs) / 8


@case(
    "mlx-lm-lora 88",
    PULL.format("Goekdeniz-Guelmez/mlx-lm-lora", 88),
    kind="preferences",
    fault="The log-probability of an answer sums over the padding behind it as well.",
    fix="Padding is left out.",
    port="A small model that was taught answers of both kinds without their padding, and torch in place of MLX; DPO.",
    words=("pad", "mask", "length", "token"),
)
class PaddingToo(AnswerPairs):
    steps = 300
    rate = 0.001

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.net, self.reference = Decoder(10, 8, depth=2), Decoder(10, 8, depth=2)
        taught(self.net, self.imitation, 300)
        self.reference.load_state_dict(self.net.state_dict())
        self.reference.requires_grad_(False)

    def summed(self, net: Any, texts: Tensor, padding: bool) -> Tensor:
        likely = log_likely(net(texts), texts)[:, 2:]
        counted = torch.ones_like(likely) if padding else (texts[:, 3:] > 0).float()  # fault
        return (counted * likely).sum(1)

    def gain(self, texts: Tensor, padding: bool) -> Tensor:
        """How much likelier an answer is than it was to the reference."""
        return self.summed(self.net, texts, padding) - self.summed(self.reference, texts, padding)

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        chosen, rejected = (self.gain(texts, not self.fixed) for texts in batch)
        return -F.logsigmoid(0.1 * (chosen - rejected)).mean()

    def score(self) -> float:
        """How often the better answer has become likelier than the other, without padding."""
        pairs = [self.batch() for _ in range(8)]
        return sum((self.gain(good, False) > self.gain(bad, False)).double().mean().item() for good, bad in pairs) / 8


@healthy("preferences", "preference optimization", 0.8)
class Preferred(Learner):
    """DPO: of two answers of four tokens, the one with more even tokens is preferred; the reference is frozen."""

    rate = 0.001
    steps = 250

    def __init__(self) -> None:
        super().__init__()
        self.policy = Reader(10, 8)
        self.reference = deepcopy(self.policy).requires_grad_(False)

    def batch(self) -> Pair:
        answers = torch.cat([torch.randint(10, (2, 64, 2))[:1].expand(2, -1, -1), torch.randint(10, (2, 64, 4))], 2)
        even = (answers[..., 2:] % 2 == 0).sum(2)
        better = (even[1] > even[0]).view(1, -1, 1)
        chosen, rejected = torch.where(better, answers.flip(0), answers)
        kept = even[0] != even[1]
        return chosen[kept], rejected[kept]

    def likely(self, net: nn.Module, answers: Tensor) -> Tensor:
        logs = net(answers[:, :-1]).log_softmax(2)
        return logs.gather(2, answers[:, 1:].unsqueeze(2)).squeeze(2)[:, 1:].sum(1)

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        now = [self.likely(self.policy, answers) for answers in batch]
        with torch.no_grad():
            before = [self.likely(self.reference, answers) for answers in batch]
        return -F.logsigmoid(0.5 * ((now[0] - before[0]) - (now[1] - before[1]))).mean()

    def score(self) -> float:
        """The share of pairs in which the preferred answer has become more likely than the other."""
        chosen, rejected = map(torch.cat, zip(*[self.batch() for _ in range(8)], strict=True))
        gains = [
            self.likely(self.policy, answers) - self.likely(self.reference, answers) for answers in (chosen, rejected)
        ]
        return (gains[0] > gains[1]).double().mean().item()


@healthy("DPO", "preferences", 0.8)
class DirectPreferences(AnswerPairs):
    """A copy of the model is the reference; prompts and padding are left out."""

    rate = 0.001
    steps = 300

    def __init__(self) -> None:
        super().__init__(True)
        self.net, self.reference = Decoder(10, 8, depth=2), Decoder(10, 8, depth=2)
        taught(self.net, self.imitation, 200)
        self.reference.load_state_dict(self.net.state_dict())
        self.reference.requires_grad_(False)

    def configure_optimizers(self) -> Any:
        return Adam(self.net.parameters(), self.rate)

    def margins(self, batch: Pair) -> Tensor:
        sums = []
        for texts in batch:
            kept = (texts[:, 3:] > 0).float()
            with torch.no_grad():
                before = log_likely(self.reference(texts), texts)[:, 2:]
            sums.append(((log_likely(self.net(texts), texts)[:, 2:] - before) * kept).sum(1))
        return sums[0] - sums[1]

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        return -F.logsigmoid(0.5 * self.margins(batch)).mean()

    def score(self) -> float:
        return sum((self.margins(self.batch()) > 0).double().mean().item() for _ in range(8)) / 8


@healthy("fine-tuning on answers", "fine-tuning", 0.8)
class Answers(Learner):
    """Prompts of four to eight tokens and their two greatest, padded to the longest; only answers have labels."""

    steps = 500

    def __init__(self) -> None:
        super().__init__()
        self.net = Decoder(25, 12, depth=2)

    def configure_optimizers(self) -> Any:
        optimizer = AdamW(self.parameters(), 0.003, weight_decay=0.01)
        schedule = OneCycleLR(optimizer, 0.003, self.steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def batch(self) -> dict[str, Tensor]:
        texts = []
        for _ in range(64):
            prompt = 1 + torch.randperm(23)[: int(torch.randint(4, 9, ()))]
            answer = torch.cat([prompt.topk(2).values, torch.tensor([24])])
            texts.append((torch.cat([prompt, answer]), torch.cat([torch.full_like(prompt, -100), answer])))
        longest = max(len(tokens) for tokens, _ in texts)
        return {
            "input_ids": torch.stack([F.pad(tokens, (0, longest - len(tokens))) for tokens, _ in texts]),
            "labels": torch.stack([F.pad(labels, (0, longest - len(labels)), value=-100) for _, labels in texts]),
        }

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        logits = self.net(batch["input_ids"])
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())

    def score(self) -> float:
        batch = self.batch()
        labels = batch["labels"][:, 1:]
        return accuracy(self.net(batch["input_ids"])[:, :-1][labels >= 0], labels[labels >= 0])


@healthy("texts packed into rows", "packed texts", 0.8)
class Rows(Packed):
    """A mask keeps texts apart, positions begin again at each, and only answers have labels."""

    steps = 200

    def __init__(self) -> None:
        super().__init__(True)

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor], batch_idx: int) -> Tensor:
        tokens, texts, places = batch
        return self.loss(tokens, texts, places, self.together(texts))
