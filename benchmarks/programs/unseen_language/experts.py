"""Mixtures of experts: who is chosen, and what keeps them even."""

import math
from typing import Any

import torch
from benchmarks.programs.steps import PULL, Learner, case
from benchmarks.programs.unseen.common import accuracy
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # the usual name


class Experts(nn.Module):
    """Small networks, of which the best few by a router's logits do the work for a token."""

    def __init__(self, width: int, experts: int, chosen: int = 1, hidden: int = 8) -> None:
        super().__init__()
        self.router, self.chosen = nn.Linear(width, experts, bias=False), chosen
        self.up = nn.Parameter(torch.randn(experts, width, hidden) / width**0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, width) / hidden**0.5)

    def all_outputs(self, states: Tensor) -> Tensor:
        """What each expert says of each token: (tokens, experts, width)."""
        return torch.einsum("ted,edw->tew", torch.einsum("tw,ewd->ted", states, self.up).relu(), self.down)


RULES = ((1, 1), (1, 5), (3, 2), (5, 7), (7, 3), (9, 11), (11, 4), (13, 6))
"""By what a token is multiplied, and what is added, to give the next of 64."""


class Mixture(Learner):
    """Texts that go on by one of eight rules, which their first token tells; one layer of experts is all there is."""

    chosen = 1

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.following = torch.stack([(factor * torch.arange(64) + term) % 64 for factor, term in RULES])
        self.tokens, self.rules, self.head = nn.Embedding(72, 32), nn.Embedding(8, 32), nn.Linear(32, 64)
        self.before, self.after = nn.LayerNorm(32), nn.LayerNorm(32)
        self.layer = Experts(32, 8, self.chosen)

    def batch(self) -> Tensor:
        rule = torch.randint(8, (64,))
        tokens = [64 + rule, torch.randint(64, (64,))]
        for _ in range(9):
            tokens.append(self.following[rule, tokens[-1]])
        return torch.stack(tokens, 1)

    def states(self, tokens: Tensor) -> Tensor:
        return self.tokens(tokens) + self.rules(tokens[:, :1] - 64)

    def mixed(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """What the layer of experts adds to the states of tokens, and what is added to the loss."""
        raise NotImplementedError

    def forward(self, tokens: Tensor) -> tuple[Any, Tensor]:
        states = self.states(tokens)
        outputs, balance = self.mixed(self.before(states).flatten(0, 1))
        return self.head(self.after(states + outputs.view_as(states))), balance

    def training_step(self, tokens: Tensor, batch_idx: int) -> Tensor:
        logits, balance = self(tokens)
        return F.cross_entropy(logits[:, 1:-1].flatten(0, 1), tokens[:, 2:].flatten()) + balance

    def score(self) -> float:
        tokens = torch.cat([self.batch() for _ in range(4)])
        return accuracy(self(tokens)[0][:, 1:-1], tokens[:, 2:])


def balance_of(likely: Tensor, chosen: Tensor) -> Tensor:
    """The loss of Switch Transformer, which is least when all experts are used alike."""
    experts = likely.shape[1]
    return experts * (F.one_hot(chosen, experts).float().mean((0, 1)) * likely.mean(0)).sum()


@case(
    "minimind 859",
    PULL.format("jingyaogong/minimind", 859),
    kind="mixture of experts",
    fault="The weights of the chosen experts are divided by their sum, also where only one is chosen.",
    fix="Only where there are more.",
    port="One layer with eight experts of eight units each, in which each of eight rules by which texts go on is"
    " worth an expert, in place of a language model.",
    causes="With one expert the weight is always 1, so that the loss gives no gradient to the router.",
    words=("router", "no gradient", "gradient", "constant", "expert", "one"),
)
class AlwaysOne(Mixture):
    steps = 200

    def mixed(self, states: Tensor) -> tuple[Tensor, Tensor]:
        likely = self.layer.router(states).softmax(1)
        weights, chosen = likely.topk(self.chosen, 1)
        if not self.fixed or self.chosen > 1:
            weights = weights / (weights.sum(1, keepdim=True) + 1e-20)  # fault
        outputs = self.layer.all_outputs(states).gather(1, chosen.unsqueeze(2).expand(-1, -1, states.shape[1]))
        return (weights.unsqueeze(2) * outputs).sum(1), 0.01 * balance_of(likely, chosen)


class Uneven(Mixture):
    """The router is made with a strong preference; what counts is how evenly the experts are used in the end."""

    chosen, steps = 2, 200

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.layer.router = nn.Linear(32, 8)
        self.layer.router.bias.data[:2] += 4.0

    def chosen_of(self, tokens: Tensor) -> Tensor:
        return self.layer.router(self.before(self.states(tokens))).topk(2).indices

    def score(self) -> float:
        """1 if all experts are used alike, 0 if one does all."""
        chosen = self.chosen_of(torch.cat([self.batch() for _ in range(4)]))
        shares = F.one_hot(chosen, 8).float().flatten(0, -2).mean(0)
        return torch.special.entr(shares).sum().item() / math.log(8)

    def weighted(self, states: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        outputs = self.layer.all_outputs(states).gather(1, chosen.unsqueeze(2).expand(-1, -1, states.shape[1]))
        return (weights.unsqueeze(2) * outputs).sum(1)


@case(
    "transformers 45131",
    PULL.format("huggingface/transformers", 45131),
    kind="mixture of experts",
    fault="The router gives probabilities where its logits are wanted, and the balancing loss takes a softmax of them.",
    fix="It gives the logits.",
    port="One layer with eight experts, of which two are preferred from the start, with the coefficient at 0.05.",
    causes="A softmax is taken twice, so that the balancing loss is almost the same whatever the router does.",
    words=("softmax", "twice", "double", "probabilities", "logits", "expert", "balance"),
)
class SoftmaxTwice(Uneven):
    steps = 100

    def mixed(self, states: Tensor) -> tuple[Tensor, Tensor]:
        router_logits = self.layer.router(states)
        likely = router_logits.softmax(1)
        weights, chosen = likely.topk(2, 1)
        if not self.fixed:
            router_logits = likely  # fault
        weights = weights / weights.sum(1, keepdim=True)
        return self.weighted(states, weights, chosen), 0.05 * balance_of(router_logits.softmax(1), chosen)


class WithLoss(torch.autograd.Function):
    """Gives what it gets, and sends a gradient of 1 to a loss that goes along."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, loss: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]  # one tensor
        return gradient, torch.ones(())


@case(
    "Automodel 1412",
    PULL.format("NVIDIA-NeMo/Automodel", 1412),
    kind="mixture of experts",
    fault="The balancing loss goes along with the weights by a function of its own, whose result is not used.",
    fix="The weights are its result.",
    port="One layer with eight experts, of which two are preferred from the start, with the coefficient at 0.05; the"
    " scale that was wrong for several ranks is left out.",
    causes="The balancing loss is cut from the graph, so that the router gets no gradient of it.",
    words=("unused", "not used", "no gradient", "balance", "expert", "discard", "cut", "reaches"),
)
class ResultUnused(Uneven):
    def mixed(self, states: Tensor) -> tuple[Tensor, Tensor]:
        likely = self.layer.router(states).softmax(1)
        weights, chosen = likely.topk(2, 1)
        carried = WithLoss.apply(weights, 0.05 * balance_of(likely, chosen))  # fault
        if self.fixed:
            weights = carried
        return self.weighted(states, weights / weights.sum(1, keepdim=True), chosen), torch.zeros(())


@case(
    "DeepSpeed 7986",
    PULL.format("deepspeedai/DeepSpeed", 7986),
    kind="mixture of experts",
    fault="Which tokens an expert takes is told by logits, with 0 for those that it was not chosen for.",
    fix="By probabilities.",
    port="One layer with eight experts, of which each token has two and each expert room for a quarter more than its"
    " share; the router is made with a bias of -2.",
    causes="Tokens with negative logits come after those of other experts and are dropped, so that hardly any token"
    " has an expert.",
    words=("drop", "capacity", "expert", "unused", "zero", "no gradient", "dead"),
)
class DroppedTokens(Uneven):
    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        nn.init.constant_(self.layer.router.bias, -2.0)

    def kept(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """The probabilities, and for which tokens and experts the work is done."""
        logits = self.layer.router(states)
        likely = logits.softmax(1)
        told = likely if self.fixed else logits  # fault
        chosen = told.topk(2, 1).indices
        mask = torch.zeros_like(logits).scatter(1, chosen, 1.0)
        masked = torch.zeros_like(logits).scatter(1, chosen, told.gather(1, chosen))
        room = math.ceil(len(states) * 2 / 8 * 1.25)
        first = torch.zeros_like(logits).scatter(0, masked.topk(room, 0).indices, 1.0)
        return likely, mask * first

    def mixed(self, states: Tensor) -> tuple[Tensor, Tensor]:
        likely, done = self.kept(states)
        weights = likely * done
        weights = weights / weights.sum(1, keepdim=True).clamp(min=1e-9)
        outputs = (weights.unsqueeze(2) * self.layer.all_outputs(states)).sum(1)
        return outputs, 0.01 * balance_of(likely, likely.topk(2, 1).indices)

    def score(self) -> float:
        """The share of right tokens."""
        return Mixture.score(self)
