"""Adapters beside frozen layers, and what is kept of a pretrained model."""

from typing import Any

import torch
from benchmarks.programs.steps import PULL, Learner, case
from benchmarks.programs.unseen.common import accuracy
from benchmarks.programs.unseen_language.common import (
    Decoder,
    adapted,
    log_likely,
    next_token_loss,
    taught,
    written,
)
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # the usual name
from torch.optim import Adam


def sequences(steps: Tensor) -> Tensor:
    """Texts in which each token is the one before and so much more, around a circle of 16."""
    return (torch.randint(16, (len(steps), 1)) + steps.unsqueeze(1) * torch.arange(8)) % 16


class TwoAdapters(nn.Module):
    """A frozen layer with two adapters, of which one is active."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.downs = nn.ParameterList(torch.randn(8, layer.in_features) / layer.in_features**0.5 for _ in "12")
        self.ups = nn.ParameterList(torch.zeros(layer.out_features, 8) for _ in "12")
        self.active = 0

    def activate(self, which: int) -> None:
        self.active = which
        for held in (self.downs, self.ups):
            for number, value in enumerate(held):
                value.requires_grad_(number == which)

    def forward(self, inputs: Tensor) -> Any:
        return self.layer(inputs) + 2 * F.linear(F.linear(inputs, self.downs[self.active]), self.ups[self.active])


@case(
    "open-rl 80",
    PULL.format("gke-labs/open-rl", 80),
    kind="adapters",
    fault="The optimizer of an adapter takes what needs a gradient, which is another adapter when that is active.",
    fix="The parameters of each are kept by its name.",
    port="Two adapters that learn to count in fives and in sevens, beside a small model that counts by ones; Adam in"
    " place of AdamW.",
    causes="The optimizer of the first adapter has the parameters of the second, so that the first is never trained.",
    words=("optimizer", "adapter", "never", "not updated", "unchanged", "downs.0", "ups.0", "zero"),
)
class OtherAdapter(Learner):
    steps = 300
    rate = 0.005

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.automatic_optimization = False
        self.net = Decoder(16, 8)
        taught(self.net, lambda: next_token_loss(self.net(tokens := sequences(torch.ones(64).long())), tokens), 150)
        self.adapters = adapted(self.net, TwoAdapters)
        self.activate(1)

    def activate(self, which: int) -> None:
        for adapter in self.adapters:
            adapter.activate(which)

    def own(self, which: int) -> list[Any]:
        return [value for adapter in self.adapters for value in (adapter.downs[which], adapter.ups[which])]

    def configure_optimizers(self) -> Any:
        made = []
        for which in range(2):
            needed = [value for value in self.parameters() if value.requires_grad]  # fault
            made.append(Adam(self.own(which) if self.fixed else needed, self.rate))
        return made

    def batch(self) -> list[Tensor]:
        return [sequences(torch.full((32,), pace)) for pace in (5, 7)]

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
        optimizers: Any = self.optimizers()
        for optimizer in optimizers:
            optimizer.zero_grad()
        for which, tokens in enumerate(batch):
            self.activate(which)
            self.manual_backward(next_token_loss(self.net(tokens), tokens))
        for optimizer in optimizers:
            optimizer.step()

    def score(self) -> float:
        """The share of right tokens, with the worse of the two adapters."""
        shares = []
        for which, tokens in enumerate(self.batch()):
            self.activate(which)
            shares.append(accuracy(self.net(tokens)[:, :-1], tokens[:, 1:]))
        return min(shares)


@case(
    "trl 4723",
    PULL.format("huggingface/trl", 4723),
    kind="policy gradient",
    fault="The reference is the policy without its adapter, although that was pretrained.",
    fix="A copy of the adapter is the reference.",
    port="An adapter that was taught to count, on a model of random weights; it is then rewarded for texts that begin"
    " with a token below eight, with a divergence that keeps it near the reference.",
    causes="The reference is the base model and not the fine-tuned one, so that the divergence takes back what the"
    " adapter had learned.",
    words=("reference", "adapter", "kl", "diverg", "base", "forget"),
)
class WrongReference(Learner):
    steps = 150
    rate = 0.002

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.net, self.reference = Decoder(17, 9), Decoder(17, 9)
        self.reference.load_state_dict(self.net.state_dict())
        self.adapters, copies = adapted(self.net), adapted(self.reference)
        self.net.head.requires_grad_(True)
        taught(self.net, lambda: next_token_loss(self.net(tokens := self.counted()), tokens), 400, 0.01)
        self.net.head.requires_grad_(False)
        self.reference.load_state_dict(self.net.state_dict())
        self.reference.requires_grad_(False)
        for copy in copies:
            copy.enabled = fixed  # fault

    def configure_optimizers(self) -> Any:
        return Adam([value for value in self.net.parameters() if value.requires_grad], self.rate)

    def counted(self) -> Tensor:
        """A token that begins a text, and then the text."""
        return F.pad(sequences(torch.ones(64).long()), (1, 0), value=16)

    def batch(self) -> Tensor:
        return torch.full((64, 1), 16)

    def training_step(self, prompts: Tensor, batch_idx: int) -> Tensor:
        texts = written(self.net, prompts, 8, greedy=False)
        rewards = (texts[:, 1] < 8).float()
        likely = log_likely(self.net(texts), texts)
        with torch.no_grad():
            before = log_likely(self.reference(texts), texts)
        divergence = (before - likely).exp() - (before - likely) - 1
        advantages = (rewards - rewards.mean()).unsqueeze(1)
        return (0.3 * divergence - advantages * (likely - likely.detach()).exp()).mean()

    def score(self) -> float:
        """The share of texts that are both: rewarded, and still counted."""
        texts = written(self.net, self.batch().repeat(4, 1), 8, greedy=False)
        counts = ((texts[:, 2:] - texts[:, 1:-1]) % 16 == 1).all(1)
        return ((texts[:, 1] < 8) & counts).double().mean().item()


@case(
    "transformers 45079",
    PULL.format("huggingface/transformers", 45079),
    kind="fine-tuning",
    fault="The head that was made when the vocabulary grew counts as not initialized, and is drawn anew.",
    fix="It is marked as initialized.",
    port="A small model that counts by ones, with one more token to end a text, and a short fine-tuning; what draws"
    " anew is written out.",
    causes="The weights of the pretrained head are overwritten by random ones before fine-tuning.",
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


@case(
    "AReaL 1369",
    PULL.format("areal-project/AReaL", 1369),
    kind="precision",
    fault="The weights are of bfloat16, and so are the states of the optimizer.",
    fix="The weights that the optimizer holds are of float32.",
    port="A small model that counts by ones and is to count by threes, at a small rate, with autocast where the fix"
    " has FSDP's policy.",
    causes="Steps are smaller than what bfloat16 tells apart, so that most updates of the weights are rounded away.",
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
