"""Rewards, preferences and policies."""

from typing import Any

import torch
from benchmarks.programs.steps import ISSUE, PULL, Learner, case
from benchmarks.programs.unseen_language.common import Decoder, log_likely, taught, written
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  # the usual name

Preferred = tuple[Tensor, Tensor]


class Grouped(Learner):
    """Prompts of two tokens with eight answers each of four tokens, which are rewarded for tokens of the prompt."""

    steps = 200

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.net = Decoder(10, 6)

    def batch(self) -> Tensor:
        return torch.randint(10, (16, 2)).repeat_interleave(8, 0)

    def rewards(self, texts: Tensor) -> Tensor:
        """The share of the answer that is one of the prompt's tokens."""
        return (texts[:, 2:].unsqueeze(2) == texts[:, :2].unsqueeze(1)).any(2).float().mean(1)

    def score(self) -> float:
        texts = written(self.net, torch.cat([self.batch() for _ in range(4)]), 4, greedy=False)
        return self.rewards(texts).mean().item()


@case(
    "flash-linear-attention 1076",
    PULL.format("fla-org/flash-linear-attention", 1076),
    kind="policy gradient",
    fault="The loss of each token has its minus already, and the mean of them gets another one.",
    fix="The second minus is removed.",
    port="A small model that is rewarded for naming tokens of its prompt, in place of a language model.",
    causes="The sign of the loss is wrong, so that rewarded answers become less likely.",
    words=("sign", "negat", "minus", "ascent", "rises", "worse", "reward"),
)
class MinusTwice(Grouped):
    def training_step(self, prompts: Tensor, batch_idx: int) -> Tensor:
        texts = written(self.net, prompts, 4, greedy=False)
        rewards = self.rewards(texts).view(-1, 8)
        advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
        advantages = advantages.flatten().unsqueeze(1)
        likely = log_likely(self.net(texts), texts)[:, 1:]
        ratio = (likely - likely.detach()).exp()
        token_loss = -torch.min(advantages * ratio, advantages * ratio.clamp(0.8, 1.2))
        return token_loss.mean() if self.fixed else -token_loss.mean()  # fault


@case(
    "grpo-flat 2",
    ISSUE.format("XU-YIJIE/grpo-flat", 2),
    kind="policy gradient",
    fault="Rewards are compared with the mean and deviation of the whole batch.",
    fix="Of the answers to the same prompt.",
    port="A small model that is rewarded for naming tokens of its prompt; prompts differ in how much there is to get.",
    causes="Advantages are normalized over all prompts, so that they tell more of the prompt than of the answer.",
    words=("group", "advantage", "batch", "normaliz", "noise", "prompt", "baseline"),
)
class OverTheBatch(Grouped):
    steps = 150

    def training_step(self, prompts: Tensor, batch_idx: int) -> Tensor:
        texts = written(self.net, prompts, 4, greedy=False)
        rewards = self.rewards(texts) + 3.0 * prompts[:, 0]
        groups = rewards.view(-1, 8) if self.fixed else rewards.view(1, -1)  # fault
        advantages = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)
        likely = log_likely(self.net(texts), texts)[:, 1:]
        return -(advantages.view(-1, 1) * (likely - likely.detach()).exp()).mean()


@case(
    "rlhf-book 216",
    PULL.format("natolambert/rlhf-book", 216),
    kind="PPO",
    fault="Advantages are the rewards less the values.",
    fix="The returns, which sum up the rewards from a token on, less the values.",
    port="Texts of four tokens that are rewarded at their end for how they begin; values from a model of its own; what"
    " else was wrong with padding is right.",
    causes="The reward at the end does not reach the tokens before, so that only the last is told what it was worth.",
    words=("return", "reward", "advantage", "value", "credit", "discount"),
)
class RewardsNotReturns(Learner):
    steps = 200

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.net, self.critic = Decoder(10, 6), Decoder(10, 6, outputs=1)

    def batch(self) -> Tensor:
        return torch.randint(10, (64, 1))

    def rewards(self, texts: Tensor) -> Tensor:
        """At the last token 1 if the first is the prompt's next and the second the one after that, 1/2 for one."""
        right = (texts[:, 1:3] == (texts[:, :1] + torch.tensor([1, 2])) % 10).float().mean(1)
        return F.pad(right.unsqueeze(1), (3, 0))

    def training_step(self, prompts: Tensor, batch_idx: int) -> Tensor:
        texts = written(self.net, prompts, 4, greedy=False)
        rewards = self.rewards(texts)
        returns = rewards.flip(1).cumsum(1).flip(1)
        values = self.critic(texts)[:, :-1].squeeze(2)
        advantages = ((returns if self.fixed else rewards) - values).detach()  # fault
        likely = log_likely(self.net(texts), texts)
        ratio = (likely - likely.detach()).exp()
        policy_loss = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
        return policy_loss + 0.5 * F.mse_loss(values, returns)

    def score(self) -> float:
        """The mean reward."""
        texts = written(self.net, torch.cat([self.batch() for _ in range(8)]), 4, greedy=False)
        return self.rewards(texts).sum(1).mean().item()


def answers(prompts: Tensor, right: bool) -> Tensor:
    """Prompts of three tokens, an answer of one to four times the second, a last token, and padding, which is 0."""
    length = torch.randint(1, 5, (len(prompts), 1))
    body = prompts[:, 1:2].expand(-1, 5)
    wanted = prompts[:, :1]
    last = wanted if right else (wanted - 1 + torch.randint(1, 9, wanted.shape)) % 9 + 1
    places = torch.arange(5)
    return torch.cat([prompts, torch.where(places < length, body, torch.where(places == length, last, 0))], 1)


class Pairs(Learner):
    """Two answers to a prompt; the better one ends with the first token of the prompt."""

    def batch(self) -> Preferred:
        prompts = torch.randint(1, 10, (64, 3))
        return answers(prompts, True), answers(prompts, False)


@case(
    "gpt-neox 1285",
    PULL.format("EleutherAI/gpt-neox", 1285),
    kind="reward model",
    fault="The reward is read one place before the last token of an answer.",
    fix="At the last token.",
    port="A small model, and answers of which the last token tells whether they are good, as the one that ends a"
    " text does not in a small vocabulary.",
    causes="The reward is read before the last token is seen, so that it cannot depend on it.",
    words=("position", "last", "plateau", "chance", "stuck", "constant", "0.69", "index", "token", "not learn"),
)
class OneBeforeLast(Pairs):
    steps = 300

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.net = Decoder(10, 8, depth=2, outputs=1)

    def reward(self, texts: Tensor) -> Tensor:
        last = (texts > 0).sum(1) - (1 if self.fixed else 2)  # fault
        return self.net(texts).squeeze(2)[torch.arange(len(texts)), last]

    def training_step(self, batch: Preferred, batch_idx: int) -> Tensor:
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
    causes="Padding counts as part of the answers, so that the loss is lowered by its probabilities.",
    words=("pad", "mask", "length", "token"),
)
class PaddingToo(Pairs):
    steps = 300
    rate = 0.001

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.net, self.reference = Decoder(10, 8, depth=2), Decoder(10, 8, depth=2)
        taught(self.net, self.imitation, 300)
        self.reference.load_state_dict(self.net.state_dict())
        self.reference.requires_grad_(False)

    def imitation(self) -> Tensor:
        tokens = torch.cat(self.batch())
        labels = tokens[:, 1:].masked_fill(tokens[:, 1:] == 0, -100)
        return F.cross_entropy(self.net(tokens)[:, :-1].flatten(0, 1), labels.flatten())

    def summed(self, net: Any, texts: Tensor, padding: bool) -> Tensor:
        likely = log_likely(net(texts), texts)[:, 2:]
        counted = torch.ones_like(likely) if padding else (texts[:, 3:] > 0).float()  # fault
        return (counted * likely).sum(1)

    def gain(self, texts: Tensor, padding: bool) -> Tensor:
        """How much likelier an answer is than it was to the reference."""
        return self.summed(self.net, texts, padding) - self.summed(self.reference, texts, padding)

    def training_step(self, batch: Preferred, batch_idx: int) -> Tensor:
        chosen, rejected = (self.gain(texts, not self.fixed) for texts in batch)
        return -F.logsigmoid(0.1 * (chosen - rejected)).mean()

    def score(self) -> float:
        """How often the better answer has become likelier than the other, without padding."""
        pairs = [self.batch() for _ in range(8)]
        return sum((self.gain(good, False) > self.gain(bad, False)).double().mean().item() for good, bad in pairs) / 8
