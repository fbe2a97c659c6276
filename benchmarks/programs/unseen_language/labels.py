"""Fine-tuning on answers: which tokens are trained, at which positions, and with which targets."""

from typing import Any

import torch
from benchmarks.programs.steps import ISSUE, PULL, Learner, case
from benchmarks.programs.unseen_language.common import Decoder, log_likely, taught, written
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  # the usual name

Pair = tuple[Tensor, Tensor]


@case(
    "torchtitan 2755",
    PULL.format("pytorch/torchtitan", 2755),
    kind="fine-tuning",
    fault="The labels, which are one token ahead, are masked for as many places as the prompt has tokens.",
    fix="For one place less.",
    port="Random tokens and their three greatest in place of chats; a small transformer.",
    causes="The first token of each answer is masked, so that the model never learns how an answer begins.",
    words=("first", "mask", "supervis", "label", "prompt", "position"),
)
class FirstMasked(Learner):
    steps = 500

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.net = Decoder(24, 12, depth=2)

    def batch(self) -> Tensor:
        prompts = torch.stack([torch.randperm(24)[:8] for _ in range(64)])
        return torch.cat([prompts, prompts.topk(3, 1).values], 1)

    def training_step(self, full: Tensor, batch_idx: int) -> Tensor:
        inputs, labels, prompt = full[:, :-1], full[:, 1:].clone(), 8
        labels[:, : prompt - 1 if self.fixed else prompt] = -100  # fault
        return F.cross_entropy(self.net(inputs).flatten(0, 1), labels.flatten(), ignore_index=-100)

    def score(self) -> float:
        """The share of answers whose first token is right."""
        full = torch.cat([self.batch() for _ in range(4)])
        return (written(self.net, full[:, :8], 1)[:, 8] == full[:, 8]).double().mean().item()


@case(
    "Automodel 1338",
    PULL.format("NVIDIA-NeMo/Automodel", 1338),
    kind="fine-tuning",
    fault="The loss is masked where the label is the padding token, which is also the one that ends an answer.",
    fix="It is masked by position, behind the first such token.",
    port="Answers that count down to one, in place of texts.",
    causes="The token that ends an answer is never trained, because it counts as padding, so that nothing stops.",
    words=("pad", "end", "eos", "mask", "ignored", "never a target", "supervis", "label"),
)
class EndIsPadding(Learner):
    steps = 200

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.net = Decoder(12, 16, depth=1)

    def batch(self) -> Tensor:
        """A number, all that are below it, and 0 to the end."""
        starts = torch.randint(2, 12, (64, 1))
        return (starts - torch.arange(14)).clamp(min=0)

    def training_step(self, tokens: Tensor, batch_idx: int) -> Tensor:
        labels = tokens[:, 1:].clone()
        padded = labels == 0
        if self.fixed:
            padded = padded & (tokens[:, :-1] == 0)
        labels[padded] = -100  # fault
        return F.cross_entropy(self.net(tokens[:, :-1]).flatten(0, 1), labels.flatten())

    def score(self) -> float:
        """The share of answers that end where they should."""
        tokens = self.batch()
        made = written(self.net, tokens[:, :1], 13)
        return ((made == 0).int().argmax(1) == tokens[:, 0]).double().mean().item()


@case(
    "OpenRLHF 217",
    ISSUE.format("OpenRLHF/OpenRLHF", 217),
    kind="policy gradient",
    fault="Log-probabilities are computed without positions, which are then counted from the padding on the left.",
    fix="Positions are counted from the first token.",
    port="A small model with learned positions, which is rewarded for the greatest token of its prompt, and no critic.",
    causes="The policy is trained at other positions than it writes at, as padding on the left shifts them.",
    words=("position", "pad", "log-prob", "ratio", "differ", "shift"),
)
class ShiftedByPadding(Learner):
    steps = 300

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.net = Decoder(8, 24)
        taught(self.net, self.imitation, 100)

    def batch(self) -> Tensor:
        """Prompts of three tokens behind eleven to fifteen of padding, which is 0."""
        return F.pad(torch.randint(1, 8, (64, 3)), (int(torch.randint(11, 16, ())), 0))

    def logits(self, tokens: Tensor, counted: bool = True) -> Any:
        kept = tokens > 0
        seen = kept.unsqueeze(1) & torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).tril()
        seen = (seen | torch.eye(tokens.shape[1], dtype=torch.bool)).unsqueeze(1)
        return self.net(tokens, (kept.cumsum(1) - 1).clamp(min=0) if counted else None, seen)

    def imitation(self) -> Tensor:
        """The loss of naming any token of the prompt."""
        prompts = self.batch()
        wanted = prompts[torch.arange(64), -1 - torch.randint(3, (64,))]
        return F.cross_entropy(self.logits(prompts)[:, -1], wanted)

    def training_step(self, prompts: Tensor, batch_idx: int) -> Tensor:
        answers = written(self.logits, prompts, 1, greedy=False)
        rewards = (answers[:, -1] == prompts.max(1).values).float()
        likely = log_likely(self.logits(answers, counted=self.fixed), answers)[:, -1]  # fault
        return -((rewards - rewards.mean()) * likely).mean()

    def score(self) -> float:
        """The share of right answers."""
        prompts = torch.cat([self.batch()[:, -14:] for _ in range(8)])
        return (written(self.logits, prompts, 1)[:, -1] == prompts.max(1).values).double().mean().item()
