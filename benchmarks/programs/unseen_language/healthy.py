"""Language models, adapters, experts and preferences as tutorials have them."""

from typing import Any

import torch
from benchmarks.programs.steps import Learner, healthy
from benchmarks.programs.unseen.common import accuracy
from benchmarks.programs.unseen_language.adapters import sequences
from benchmarks.programs.unseen_language.attention import Packed
from benchmarks.programs.unseen_language.common import (
    Decoder,
    adapted,
    log_likely,
    next_token_loss,
    taught,
    written,
)
from benchmarks.programs.unseen_language.experts import Mixture, balance_of
from benchmarks.programs.unseen_language.policies import Grouped, Pairs, Preferred
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  # the usual name
from torch.optim import Adam, AdamW
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.checkpoint import checkpoint


@healthy("LoRA on a language model", "adapters", 0.8)
class Adapters(Learner):
    """A model that counts by ones learns to count by threes, with its own weights frozen."""

    rate = 0.005
    steps = 300

    def __init__(self) -> None:
        super().__init__()
        self.net = Decoder(16, 8)
        taught(self.net, lambda: next_token_loss(self.net(tokens := sequences(torch.ones(64).long())), tokens), 150)
        adapted(self.net)

    def configure_optimizers(self) -> Any:
        return AdamW([value for value in self.parameters() if value.requires_grad], self.rate)

    def batch(self) -> Tensor:
        return sequences(torch.full((64,), 3))

    def training_step(self, tokens: Tensor, batch_idx: int) -> Tensor:
        return next_token_loss(self.net(tokens), tokens)

    def score(self) -> float:
        tokens = self.batch()
        return accuracy(self.net(tokens)[:, :-1], tokens[:, 1:])


@healthy("experts with a balancing loss", "mixture of experts", 0.8)
class Balanced(Mixture):
    """The two best of eight experts, with probabilities made to sum to 1."""

    chosen = 2
    steps = 300

    def __init__(self) -> None:
        super().__init__(True)

    def mixed(self, states: Tensor) -> tuple[Tensor, Tensor]:
        likely = self.layer.router(states).softmax(1)
        weights, chosen = likely.topk(2, 1)
        weights = weights / weights.sum(1, keepdim=True)
        outputs = self.layer.all_outputs(states).gather(1, chosen.unsqueeze(2).expand(-1, -1, states.shape[1]))
        return (weights.unsqueeze(2) * outputs).sum(1), 0.01 * balance_of(likely, chosen)


@healthy("DPO", "preferences", 0.8)
class Preferences(Pairs):
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

    def imitation(self) -> Tensor:
        tokens = torch.cat(self.batch())
        labels = tokens[:, 1:].masked_fill(tokens[:, 1:] == 0, -100)
        return F.cross_entropy(self.net(tokens)[:, :-1].flatten(0, 1), labels.flatten())

    def margins(self, batch: Preferred) -> Tensor:
        sums = []
        for texts in batch:
            kept = (texts[:, 3:] > 0).float()
            with torch.no_grad():
                before = log_likely(self.reference(texts), texts)[:, 2:]
            sums.append(((log_likely(self.net(texts), texts)[:, 2:] - before) * kept).sum(1))
        return sums[0] - sums[1]

    def training_step(self, batch: Preferred, batch_idx: int) -> Tensor:
        return -F.logsigmoid(0.5 * self.margins(batch)).mean()

    def score(self) -> float:
        return sum((self.margins(self.batch()) > 0).double().mean().item() for _ in range(8)) / 8


@healthy("GRPO", "policy gradient", 0.8)
class Policy(Grouped):
    """Advantages of each group, a clipped ratio, and a divergence that keeps the policy near its start."""

    def __init__(self) -> None:
        super().__init__(True)
        self.reference = Decoder(10, 6)
        self.reference.load_state_dict(self.net.state_dict())
        self.reference.requires_grad_(False)

    def configure_optimizers(self) -> Any:
        return AdamW(self.net.parameters(), self.rate)

    def training_step(self, prompts: Tensor, batch_idx: int) -> Tensor:
        texts = written(self.net, prompts, 4, greedy=False)
        rewards = self.rewards(texts).view(-1, 8)
        advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
        advantages = advantages.view(-1, 1)
        likely = log_likely(self.net(texts), texts)[:, 1:]
        with torch.no_grad():
            before = log_likely(self.reference(texts), texts)[:, 1:]
        ratio = (likely - likely.detach()).exp()
        clipped = torch.min(advantages * ratio, advantages * ratio.clamp(0.8, 1.2))
        divergence = (before - likely).exp() - (before - likely) - 1
        return -(clipped - 0.01 * divergence).mean()


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


@healthy("head that is the embedding", "language model", 0.8)
class Tied(Learner):
    """GPT-2's way: weights of the embedding are those of the head, with a small start and no decay for vectors."""

    steps = 300

    def __init__(self) -> None:
        super().__init__()
        self.net = Decoder(16, 8, depth=2)
        for module in self.net.modules():
            if isinstance(module, torch.nn.Linear | torch.nn.Embedding):
                torch.nn.init.normal_(module.weight, std=0.02)
        self.net.head.weight = self.net.tokens.weight

    def configure_optimizers(self) -> Any:
        values = [*self.parameters()]
        groups = [
            {"params": [value for value in values if value.dim() > 1], "weight_decay": 0.1},
            {"params": [value for value in values if value.dim() < 2], "weight_decay": 0.0},
        ]
        return AdamW(groups, self.rate, betas=(0.9, 0.95))

    def batch(self) -> Tensor:
        return sequences(torch.randint(1, 4, (64,)))

    def training_step(self, tokens: Tensor, batch_idx: int) -> Tensor:
        return next_token_loss(self.net(tokens), tokens)

    def score(self) -> float:
        """The share of right tokens, when two have shown how the text goes on."""
        tokens = self.batch()
        return accuracy(self.net(tokens)[:, 1:-1], tokens[:, 2:])


@healthy("checkpointed blocks", "language model", 0.8)
class Recomputed(Tied):
    """The states within each block are computed once more in the backward pass."""

    def training_step(self, tokens: Tensor, batch_idx: int) -> Tensor:
        states = self.net.tokens(tokens) + self.net.places(torch.arange(8))  # type: ignore[misc]  # it has positions
        for block in self.net.blocks:
            states = checkpoint(block, states, use_reentrant=False)
        return next_token_loss(self.net.head(self.net.norm(states)), tokens)
