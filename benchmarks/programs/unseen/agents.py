"""Reinforcement learning, from transitions that are drawn at random."""

from copy import deepcopy
from typing import Any

import torch
from benchmarks.programs.steps import ISSUE, PULL, Learner, case
from benchmarks.programs.unseen.common import accuracy, mlp, r2
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # the usual name
from torch.optim import Adam

Transitions = tuple[Tensor, ...]


def track(model: nn.Module, target: nn.Module, share: float) -> None:
    """Move a target network by a share of the way."""
    with torch.no_grad():
        for mine, its in zip(model.parameters(), target.parameters(), strict=True):
            its.lerp_(mine, share)


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
    causes="A plus in place of a times: the next value is not discounted, counts after the end, and grows.",
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


class Corridor(Learner):
    """Rooms in a row; of four actions two go left or right and two stay; each step costs 1, the last room ends it."""

    rooms = 10
    goal_reward, step_reward = 0.0, -1.0

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.net = mlp(self.rooms, 32, 4)
        self.target = deepcopy(self.net).requires_grad_(False)

    def batch(self) -> Transitions:
        rooms, actions = torch.randint(self.rooms - 1, (64,)), torch.randint(4, (64,))
        after = (rooms + torch.tensor([-1, 1, 0, 0])[actions]).clamp(min=0)
        ended = after == self.rooms - 1
        return rooms, actions, after, ended.float(), torch.where(ended, self.goal_reward, self.step_reward)

    def seen(self, rooms: Tensor) -> Tensor:
        return F.one_hot(rooms, self.rooms).float()

    def wanted(self, batch: Transitions) -> Tensor:
        _, _, after, ended, rewards = batch
        return rewards + 0.9 * (1 - ended) * self.target(self.seen(after)).max(1).values

    def score(self) -> float:
        """The share of rooms from which the best action is to the right."""
        return (self.net(self.seen(torch.arange(self.rooms - 1))).argmax(1) == 1).double().mean().item()


@case(
    "Tensorflow-2-RL-Cookbook 32",
    ISSUE.format("PacktPublishing/Tensorflow-2-Reinforcement-Learning-Cookbook", 32),
    kind="Q-learning",
    fault="The targets of the actions that were not taken are 0.",
    fix="They are what the network predicts, so that only the taken action is trained.",
    port="A corridor of ten rooms, from random transitions, in place of CartPole; torch in place of TensorFlow.",
    causes="The value of each action that was not taken is pulled to 0.",
    words=("target", "zero", "action", "value"),
)
class OthersAreZero(Corridor):
    def training_step(self, batch: Transitions, batch_idx: int) -> Tensor:
        rooms, actions = batch[:2]
        if batch_idx % 10 == 0:
            track(self.net, self.target, 1.0)
        values = self.net(self.seen(rooms))
        targets = values.detach().clone() if self.fixed else torch.zeros_like(values)  # fault
        targets[torch.arange(len(rooms)), actions] = self.wanted(batch)
        return F.mse_loss(values, targets)


@case(
    "MARL 8",
    ISSUE.format("thesouther/MARL", 8),
    kind="Q-learning",
    fault="The target network loads its own state.",
    fix="It loads the state of the network that is trained.",
    port="One agent in a corridor of ten rooms in place of many that are mixed.",
    causes="The target network is never updated, so that values are those of its random weights.",
    words=("target", "never", "not updated", "stale", "unchanged"),
)
class OwnState(Corridor):
    goal_reward, step_reward = 1.0, 0.0

    def training_step(self, batch: Transitions, batch_idx: int) -> Tensor:
        rooms, actions = batch[:2]
        if batch_idx % 10 == 0:
            self.target.load_state_dict((self.net if self.fixed else self.target).state_dict())  # fault
        values = self.net(self.seen(rooms)).gather(1, actions.unsqueeze(1)).squeeze(1)
        return F.mse_loss(values, self.wanted(batch))


@case(
    "acme 277",
    ISSUE.format("google-deepmind/acme", 277),
    kind="offline RL",
    fault="Log-probabilities (N,) times weights (N, 1) are (N, N).",
    fix="Both have one shape.",
    port="A single choice of five in place of control, in torch in place of JAX; the critic's loss, where the same is"
    " wrong, is right here.",
    causes="By broadcasting each action gets the weights of all samples, so that the policy imitates good and bad.",
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
    causes="The gradient of the policy's loss reaches the critic, and pulls its value away from the cost.",
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
    causes="The sign of the actor's loss is wrong, so that it looks for the worst action.",
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
    "ray 65125",
    PULL.format("ray-project/ray", 65125),
    kind="actor-critic",
    fault="The actor's loss goes through critics that are not frozen, after their gradients were taken and before"
    " their step.",
    fix="The critics are frozen for that pass.",
    port="A single step with one action from -1 to 1, and one critic, in place of TQC.",
    causes="The gradient of the actor's loss is added to the critic's, which therefore raises its values everywhere.",
    words=("critic", "leak", "grow", "gradient", "other loss", "accumulat", "diverge"),
)
class LeakedIntoCritic(ActorSign):
    def training_step(self, batch: Transitions, batch_idx: int) -> None:
        states, actions, rewards = batch
        for_actor, for_critic = self.optimizers()
        for_actor.zero_grad()
        for_critic.zero_grad()
        self.manual_backward(F.mse_loss(self.critic(torch.cat([states, actions], 1)), rewards))
        self.critic.requires_grad_(not self.fixed)  # fault
        self.manual_backward(-self.critic(torch.cat([states, self.actor(states)], 1)).mean())
        self.critic.requires_grad_(True)
        for_critic.step()
        for_actor.step()

    def score(self) -> float:
        """How near the actor is to the best actions, less how wrong the critic is about those of the actor."""
        states = torch.randn(512, 3)
        actions = self.actor(states)
        apart = actions - self.best(states)
        values = self.critic(torch.cat([states, actions], 1))
        return 1 - (apart.abs() + (values + apart.square()).abs()).mean().item()


@case(
    "RLinf 1568",
    ISSUE.format("RLinf/RLinf", 1568),
    kind="PPO",
    fault="Values (N,) are subtracted from returns (N, 1).",
    fix="Both are (N, 1).",
    port="Returns of a single step with five actions in place of a robot's.",
    causes="By broadcasting each value is compared with the returns of all samples, and becomes their mean.",
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
