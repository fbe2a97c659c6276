"""Reinforcement learning: transitions that are drawn at random, or steps that the policy takes itself."""

import math
from copy import deepcopy
from typing import Any

import torch
from benchmarks.programs.other_kinds.common import Pair, mlp, track
from benchmarks.programs.parts import accuracy, r2
from benchmarks.programs.program import ISSUE, PULL, Learner, case, healthy
from torch import Tensor, nn
from torch.distributions import Categorical, Normal
from torch.nn import functional as F  # noqa: N812  # the usual name
from torch.optim import Adam

Transitions = tuple[Tensor, ...]


class Quadratic(nn.Module):
    """The value of a state, its best action, and how fast other actions are worse."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = mlp(1, 64, 64), nn.Linear(64, 3)

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        value, best, slope = self.head(self.body(states).relu()).unbind(1)
        return value, best.tanh(), slope.exp()


@case(
    "pytorch-ddpg-naf 16",
    ISSUE.format("ikostrikov/pytorch-ddpg-naf", 16),
    kind="Q-learning",
    fault="The target is reward + discount * mask + next value.",
    fix="reward + discount * mask * next value.",
    port="A point on a line that is to get to the middle, from random transitions, in place of MuJoCo.",
    words=("target", "grow", "diverge", "bootstrap", "value", "scale"),
)
class NormalizedAdvantage(Learner):
    steps = 600

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.net = Quadratic()
        self.target = deepcopy(self.net).requires_grad_(False)

    def batch(self) -> Transitions:
        states, actions = (2 * torch.rand(2, 128) - 1).unbind(0)
        after = (states + 0.3 * actions).clamp(-1, 1)
        return states, actions, after, (after.abs() > 0.15).float()

    def training_step(self, batch: Transitions, batch_idx: int) -> Tensor:
        states, actions, after, goes_on = batch
        track(self.net, self.target, 0.05)
        next_value = self.target(after.unsqueeze(1))[0]
        next_value = 0.99 * goes_on * next_value if self.fixed else 0.99 * goes_on + next_value  # fault
        value, best, slope = self.net(states.unsqueeze(1))
        return F.mse_loss(value - slope * (actions - best).square() / 2, next_value - 1)

    def score(self) -> float:
        """The share of states from which the best actions get to the middle in five steps."""
        states = torch.linspace(-1, 1, 201)
        arrived = states.abs() < 0.15
        for _ in range(5):
            states = (states + 0.3 * self.net(states.unsqueeze(1))[1]).clamp(-1, 1)
            arrived |= states.abs() < 0.15
        return arrived.double().mean().item()


@case(
    "acme 277",
    ISSUE.format("google-deepmind/acme", 277),
    kind="offline RL",
    fault="Log-probabilities (N,) times weights (N, 1) are (N, N).",
    fix="Both have one shape.",
    port="A single choice of five in place of control, in torch in place of JAX; the critic's loss, where the same is"
    " wrong, is right here.",
    words=("broadcast", "shape", "sample", "mix"),
)
class CriticRegularized(Learner):
    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.best = mlp(4, 16, 5).requires_grad_(False)
        self.policy, self.critic = mlp(4, 64, 5), mlp(4, 64, 5)

    def batch(self) -> Transitions:
        states = torch.randn(64, 4)
        actions = torch.randint(5, (64,))
        return states, actions, (self.best(states).argmax(1) == actions).float()

    def training_step(self, batch: Transitions, batch_idx: int) -> Tensor:
        states, actions, rewards = batch
        values = self.critic(states)
        taken = values.gather(1, actions.unsqueeze(1))
        critic_loss = F.mse_loss(taken.squeeze(1), rewards)
        advantages = (taken - values.mean(1, keepdim=True)).detach()
        weights = (advantages / 0.2).exp().clamp(max=20)
        likely = torch.distributions.Categorical(logits=self.policy(states)).log_prob(actions)
        policy_loss = -(likely * (weights.squeeze(1) if self.fixed else weights)).mean()  # fault
        return policy_loss + critic_loss

    def score(self) -> float:
        """The share of states in which the policy's first choice is best."""
        states = torch.randn(512, 4)
        return accuracy(self.policy(states), self.best(states).argmax(1))


@case(
    "encode-attend-navigate-pytorch 2",
    ISSUE.format("astariul/encode-attend-navigate-pytorch", 2),
    kind="policy gradient",
    fault="The critic's value is not detached in the policy's loss.",
    fix="detach().",
    port="24 choices of six at once, of which each has a right one, in place of the tour of a salesman.",
    words=("detach", "critic", "baseline", "value", "gradient of"),
)
class CriticAttached(Learner):
    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.right = mlp(4, 16, 24 * 6).requires_grad_(False)
        self.policy, self.critic = mlp(4, 64, 24 * 6), mlp(4, 64, 1)

    def batch(self) -> Tensor:
        return torch.randn(64, 4)

    def costs(self, states: Tensor, actions: Tensor) -> Tensor:
        return (self.right(states).view(-1, 24, 6).argmax(2) != actions).float().sum(1)

    def training_step(self, states: Tensor, batch_idx: int) -> Tensor:
        choices = torch.distributions.Categorical(logits=self.policy(states).view(-1, 24, 6))
        actions = choices.sample()
        costs, values = self.costs(states, actions), self.critic(states).squeeze(1)
        baseline = values.detach() if self.fixed else values  # fault
        policy_loss = ((costs - baseline) * choices.log_prob(actions).sum(1)).mean()
        return policy_loss + F.mse_loss(values, costs)

    def score(self) -> float:
        """The share of right choices."""
        states = self.batch()
        return 1 - self.costs(states, self.policy(states).view(-1, 24, 6).argmax(2)).mean().item() / 24


@case(
    "Truxify 11885",
    PULL.format("KanishJebaMathewM/Truxify", 11885),
    kind="actor-critic",
    fault="The actor's loss is the mean of the critic's values.",
    fix="Minus the mean.",
    port="A single step with one action from -1 to 1, in place of rides.",
    words=("sign", "ascent", "rises", "worse", "minus"),
)
class ActorSign(Learner):
    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.automatic_optimization = False
        self.best = nn.Sequential(mlp(3, 16, 1), nn.Tanh()).requires_grad_(False)
        self.actor, self.critic = nn.Sequential(mlp(3, 32, 1), nn.Tanh()), mlp(4, 64, 1)

    def configure_optimizers(self) -> Any:
        return Adam(self.actor.parameters(), self.rate), Adam(self.critic.parameters(), self.rate)

    def batch(self) -> Transitions:
        states, actions = torch.randn(64, 3), 2 * torch.rand(64, 1) - 1
        return states, actions, -(actions - self.best(states)).square()

    def training_step(self, batch: Transitions, batch_idx: int) -> None:
        states, actions, rewards = batch
        for_actor, for_critic = self.optimizers()
        self.descend(for_critic, F.mse_loss(self.critic(torch.cat([states, actions], 1)), rewards))
        values = self.critic(torch.cat([states, self.actor(states)], 1))
        self.descend(for_actor, -values.mean() if self.fixed else values.mean())  # fault

    def score(self) -> float:
        states = torch.randn(512, 3)
        return 1 - (self.actor(states) - self.best(states)).abs().mean().item()


@case(
    "RLinf 1568",
    ISSUE.format("RLinf/RLinf", 1568),
    kind="PPO",
    fault="Values (N,) are subtracted from returns (N, 1).",
    fix="Both are (N, 1).",
    port="Returns of a single step with five actions in place of a robot's.",
    words=("broadcast", "shape", "sample", "mix", "constant"),
)
class ValuesAcross(Learner):
    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.worth = mlp(4, 16, 5).requires_grad_(False)
        self.policy, self.critic = mlp(4, 64, 5), mlp(4, 64, 1)

    def batch(self) -> Transitions:
        states = torch.randn(64, 4)
        actions = torch.randint(5, (64, 1))
        returns = 4 * self.worth(states).mean(1, keepdim=True) + 2 * self.worth(states).gather(1, actions)
        return states, actions, returns

    def training_step(self, batch: Transitions, batch_idx: int) -> Tensor:
        states, actions, returns = batch
        values = self.critic(states)
        ratio = 5 * self.policy(states).softmax(1).gather(1, actions)
        advantages = (returns - values).detach()
        policy_loss = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
        value_loss = (returns - (values if self.fixed else values.squeeze(1))).square().mean()  # fault
        return policy_loss + 0.5 * value_loss

    def score(self) -> float:
        """How much of the mean return of a state its value explains."""
        states = torch.randn(512, 4)
        return r2(self.critic(states).squeeze(1), 6 * self.worth(states).mean(1))


@healthy("PPO in a corridor", "PPO", 0.9)
class Clipped(Learner):
    """Sixteen agents walk in nine rooms; generalized advantages, four passes over each rollout, clipped gradients."""

    steps = 80

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.policy, self.value = mlp(9, 32, 3), mlp(9, 32, 1)
        self.rooms = torch.zeros(16, dtype=torch.long)

    def batch(self) -> Tensor:
        """What chance has in store for the resets."""
        return torch.randint(8, (24, 16))

    def rollout(self, resets: Tensor) -> tuple[Tensor, ...]:
        kept = []
        for reset in resets:
            choices = Categorical(logits=self.policy(F.one_hot(self.rooms, 9).float()))
            actions = choices.sample()
            after = (self.rooms + actions - 1).clamp(min=0)
            ended = after == 8
            kept.append((self.rooms, actions, choices.log_prob(actions), ended.float(), ended.float() - 0.05))
            self.rooms = torch.where(ended, reset, after)
        return tuple(torch.stack(values) for values in zip(*kept, strict=True))

    def training_step(self, resets: Tensor, batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        with torch.no_grad():
            rooms, actions, before, ended, rewards = self.rollout(resets)
            all_rooms = torch.cat([rooms, self.rooms.unsqueeze(0)])
            values = self.value(F.one_hot(all_rooms, 9).float()).squeeze(2)
            gains, last = torch.zeros_like(rewards), torch.zeros(16)
            for step in reversed(range(len(rewards))):
                delta = rewards[step] + 0.95 * (1 - ended[step]) * values[step + 1] - values[step]
                gains[step] = last = delta + 0.95 * 0.9 * (1 - ended[step]) * last
            returns, gains = gains + values[:-1], (gains - gains.mean()) / (gains.std() + 1e-8)
        for order in torch.randperm(rooms.numel()).repeat(4).split(96):
            seen = F.one_hot(rooms.flatten()[order], 9).float()
            choices, gain = Categorical(logits=self.policy(seen)), gains.flatten()[order]
            ratio = (choices.log_prob(actions.flatten()[order]) - before.flatten()[order]).exp()
            loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean() - 0.01 * choices.entropy().mean()
            loss = loss + 0.5 * F.mse_loss(self.value(seen).squeeze(1), returns.flatten()[order])
            optimizer.zero_grad()
            self.manual_backward(loss)
            self.clip_gradients(optimizer, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
            optimizer.step()

    def score(self) -> float:
        """The share of rooms from which the likeliest move is to the right."""
        return (self.policy(torch.eye(9)[:8]).argmax(1) == 2).double().mean().item()


@healthy("soft actor-critic", "actor-critic", 0.8)
class Soft(Learner):
    """Two critics and a temperature that is learned, on a point that is to get to the middle of a line."""

    steps = 500

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.actor, self.critics = mlp(1, 32, 2), nn.ModuleList(mlp(2, 64, 64, 1) for _ in range(2))
        self.targets = deepcopy(self.critics).requires_grad_(False)
        self.log_alpha = nn.Parameter(torch.tensor(-2.0))

    def configure_optimizers(self) -> Any:
        held = (self.actor.parameters(), self.critics.parameters(), [self.log_alpha])
        return [Adam(part, self.rate) for part in held]

    def batch(self) -> tuple[Tensor, ...]:
        states, actions = (2 * torch.rand(2, 128, 1) - 1).unbind(0)
        after = (states + 0.3 * actions).clamp(-1, 1)
        return states, actions, after, -after.abs()

    def drawn(self, states: Tensor) -> Pair:
        means, logs = self.actor(states).chunk(2, 1)
        choices = Normal(means, logs.clamp(-5, 1).exp())
        raw = choices.rsample()
        logs = choices.log_prob(raw) - 2 * (math.log(2) - raw - F.softplus(-2 * raw))
        return raw.tanh(), logs

    def training_step(self, batch: tuple[Tensor, ...], batch_idx: int) -> None:
        states, actions, after, rewards = batch
        for_actor, for_critics, for_alpha = self.optimizers()
        alpha = self.log_alpha.exp().detach()
        with torch.no_grad():
            next_actions, logs = self.drawn(after)
            inputs = torch.cat([after, next_actions], 1)
            wanted = rewards + 0.9 * (torch.min(*(critic(inputs) for critic in self.targets)) - alpha * logs)
        inputs = torch.cat([states, actions], 1)
        self.descend(for_critics, torch.stack([F.mse_loss(critic(inputs), wanted) for critic in self.critics]).sum())
        self.critics.requires_grad_(False)
        actions, logs = self.drawn(states)
        inputs = torch.cat([states, actions], 1)
        self.descend(for_actor, (alpha * logs - torch.min(*(critic(inputs) for critic in self.critics))).mean())
        self.critics.requires_grad_(True)
        self.descend(for_alpha, -(self.log_alpha * (logs.detach() - 1)).mean())
        track(self.critics, self.targets, 0.05)

    def score(self) -> float:
        """1, less how far from the middle points are after six moves."""
        states = torch.linspace(-1, 1, 101).unsqueeze(1)
        for _ in range(6):
            states = (states + 0.3 * self.actor(states)[:, :1].tanh()).clamp(-1, 1)
        return 1 - states.abs().mean().item()
