"""Reinforcement learning: transitions that are drawn at random, or steps that the policy takes itself."""

from copy import deepcopy
from typing import Any

import torch
from benchmarks.programs.steps import ISSUE, PULL, Learner, case
from benchmarks.programs.unseen.agents import Corridor, track
from benchmarks.programs.unseen.common import accuracy, mlp
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional as F  # noqa: N812  # the usual name
from torch.optim import Adam

Transitions = tuple[Tensor, ...]


class OnALine(Learner):
    """A point that is to get to the middle of a line, by moves of up to 0.3; each costs 1 until it is there."""

    steps = 500

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.automatic_optimization = False
        self.actor = nn.Sequential(mlp(1, 32, 1), nn.Tanh())
        self.critics = nn.ModuleList(mlp(2, 64, 64, 1) for _ in range(2))
        self.targets: Any = deepcopy(nn.ModuleDict({"actor": self.actor, "critics": self.critics})).requires_grad_(
            False
        )

    def configure_optimizers(self) -> Any:
        return Adam(self.actor.parameters(), self.rate), Adam(self.critics.parameters(), self.rate)

    def batch(self) -> Transitions:
        states, actions = (2 * torch.rand(2, 128, 1) - 1).unbind(0)
        after = (states + 0.3 * actions).clamp(-1, 1)
        return states, actions, after, after.abs() < 0.15, -torch.ones(128, 1)

    def wanted(self, batch: Transitions) -> Tensor:
        """The targets of the critics."""
        _, _, after, ended, rewards = batch
        inputs = torch.cat([after, self.targets["actor"](after)], 1)
        later = torch.min(*(critic(inputs) for critic in self.targets["critics"]))
        return torch.where(ended, rewards, rewards + 0.9 * later)

    def errors(self, batch: Transitions) -> Tensor:
        """The loss of the critics."""
        wanted, inputs = self.wanted(batch), torch.cat(batch[:2], 1)
        return torch.stack([F.mse_loss(critic(inputs), wanted) for critic in self.critics]).sum()

    def training_step(self, batch: Transitions, batch_idx: int) -> None:
        for_actor, for_critics = self.optimizers()
        self.descend(for_critics, self.errors(batch))
        inputs = torch.cat([batch[0], self.actor(batch[0])], 1)
        self.descend(for_actor, -self.critics[0](inputs).mean())
        track(self.actor, self.targets["actor"], 0.05)
        track(self.critics, self.targets["critics"], 0.05)

    def score(self) -> float:
        """The share of states from which the point is in the middle after four moves."""
        states = torch.linspace(-1, 1, 201).unsqueeze(1)
        arrived = states.abs() < 0.15
        for _ in range(4):
            states = (states + 0.3 * self.actor(states)).clamp(-1, 1)
            arrived |= states.abs() < 0.15
        return arrived.double().mean().item()


@case(
    "Tensorflow-2-RL-Cookbook 34",
    ISSUE.format("PacktPublishing/Tensorflow-2-Reinforcement-Learning-Cookbook", 34),
    kind="actor-critic",
    fault="The target of a step that does not end is the discounted value alone.",
    fix="The reward is added.",
    port="A point on a line, from random transitions and with two critics, in place of a pendulum and one; torch in"
    " place of TensorFlow.",
    causes="The reward is missing in the critic's target, so that all states come to be worth the same.",
    words=("reward", "target", "constant", "value", "same"),
)
class NoReward(OnALine):
    def wanted(self, batch: Transitions) -> Tensor:
        _, _, after, ended, rewards = batch
        inputs = torch.cat([after, self.targets["actor"](after)], 1)
        later = torch.min(*(critic(inputs) for critic in self.targets["critics"]))
        return torch.where(ended, rewards, (rewards if self.fixed else 0) + 0.9 * later)  # fault


@case(
    "ray 4108",
    PULL.format("ray-project/ray", 4108),
    kind="actor-critic",
    fault="With two critics, only the first has a loss.",
    fix="Both are optimized.",
    port="A point on a line with a reward of 1 in the middle, from random transitions; torch in place of TensorFlow.",
    causes="The second critic is never trained, and the lesser of both values comes from its random weights.",
    words=("second", "critics.1", "no gradient", "never", "unchanged", "not updated", "not trained"),
)
class OneOfTwo(OnALine):
    def batch(self) -> Transitions:
        states, actions, after, ended, _ = super().batch()
        return states, actions, after, ended, ended.float()

    def errors(self, batch: Transitions) -> Tensor:
        wanted, inputs = self.wanted(batch), torch.cat(batch[:2], 1)
        held = self.critics if self.fixed else self.critics[:1]  # fault
        return torch.stack([F.mse_loss(critic(inputs), wanted) for critic in held]).sum()

    def score(self) -> float:
        """1, less how far values of the actor's actions are from what these earn."""
        states = torch.linspace(-1, 1, 201).unsqueeze(1)
        values = self.critics[0](torch.cat([states, self.actor(states)], 1))
        earned, arrived = torch.zeros_like(states), torch.zeros_like(states, dtype=torch.bool)
        for step in range(10):
            states = (states + 0.3 * self.actor(states)).clamp(-1, 1)
            now = (states.abs() < 0.15) & ~arrived
            earned, arrived = earned + 0.9**step * now, arrived | now
        return 1 - (values - earned).abs().mean().item()


@case(
    "PRDC 1",
    PULL.format("LAMDA-RL/PRDC", 1),
    kind="offline RL",
    fault="What is scaled is at the index of the next states, not at that of the rewards.",
    fix="The index of the rewards.",
    port="A point on a line in place of a maze, without what keeps near the data; the scale is 4 (x - 1/2), as is"
    " usual in mazes, and the next states are made with it once, as in the buffer.",
    causes="The next states are scaled and shifted in place of the rewards, so that targets are those of other states.",
    words=("next", "scale", "range", "distribution", "input", "state"),
)
class ScaledStates(OnALine):
    def batch(self) -> Transitions:
        states, actions, after, ended, rewards = super().batch()
        kept = [states, actions, after, ended, rewards]
        at = 4 if self.fixed else 2  # fault
        kept[at] = 4 * (kept[at] - 0.5)
        return tuple(kept)


@case(
    "omnisafe 133",
    PULL.format("PKU-Alignment/omnisafe", 133),
    kind="PPO",
    fault="The entropy is added to the loss.",
    fix="It is subtracted.",
    port="A single choice of 16, of which each state has a right one, in place of control; the coefficient is 0.3,"
    " and 0 by default in the source.",
    causes="The sign of the entropy is wrong: the policy is driven to be sure before it knows what is good.",
    words=("entropy", "sign", "collapse", "sure", "deterministic", "saturat"),
)
class SureTooSoon(Learner):
    steps = 500

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.automatic_optimization = False
        self.right = mlp(4, 16, 16).requires_grad_(False)
        self.policy, self.critic = mlp(4, 64, 16), mlp(4, 64, 1)

    def batch(self) -> Tensor:
        return torch.randn(64, 4)

    def training_step(self, states: Tensor, batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        with torch.no_grad():
            before = Categorical(logits=self.policy(states))
            actions = before.sample()
            old, rewards = before.log_prob(actions), (self.right(states).argmax(1) == actions).float()
        for _ in range(3):
            now, values = Categorical(logits=self.policy(states)), self.critic(states).squeeze(1)
            ratio, advantages = (now.log_prob(actions) - old).exp(), rewards - values.detach()
            loss = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
            entropy = now.entropy().mean()
            loss = loss - 0.3 * entropy if self.fixed else loss + 0.3 * entropy  # fault
            self.descend(optimizer, loss + 0.5 * F.mse_loss(values, rewards))

    def score(self) -> float:
        """The share of states in which the first choice is right."""
        states = torch.randn(512, 4)
        return accuracy(self.policy(states), self.right(states).argmax(1))


@case(
    "RoboVerse 814",
    PULL.format("RoboVerseOrg/RoboVerse", 814),
    kind="PPO",
    fault="The advantage of a step looks whether the next step ended the episode.",
    fix="Whether the step itself did.",
    port="States that are drawn anew in each step, in which one of two actions ends the episode, in place of robots; a"
    " reward of 1 for each step, and of 1.2 for one that ends it; one pass over each rollout.",
    causes="The value of the state after a reset is credited to the action that ended the episode, as the mask is one"
    " step late.",
    words=("shift", "step", "end", "bootstrap", "mask", "reward", "advantage"),
)
class OneStepLate(Learner):
    steps = 400
    length = 16

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.fatal = mlp(3, 16, 2).requires_grad_(False)
        self.policy, self.critic = mlp(3, 32, 2), mlp(3, 32, 1)

    def batch(self) -> Tensor:
        return torch.randn(self.length + 1, 16, 3)

    def training_step(self, states: Tensor, batch_idx: int) -> Tensor:
        choices, values = Categorical(logits=self.policy(states)), self.critic(states).squeeze(2)
        actions, known = choices.sample(), values.detach()
        ended = (actions == self.fatal(states).argmax(2)).float()
        rewards, advantages, last = 1 + 0.2 * ended, torch.zeros_like(known), torch.zeros(16)
        for step in reversed(range(self.length)):
            goes_on = 1 - ended[step if self.fixed or step == self.length - 1 else step + 1]  # fault
            delta = rewards[step] + 0.95 * goes_on * known[step + 1] - known[step]
            advantages[step] = last = delta + 0.95 * 0.9 * goes_on * last
        within = slice(self.length)
        returns, gains = (advantages + known)[within], advantages[within]
        gains = (gains - gains.mean()) / (gains.std() + 1e-8)
        policy_loss = -(gains * choices.log_prob(actions)[within]).mean()
        return policy_loss + 0.5 * F.mse_loss(values[within], returns) - 0.01 * choices.entropy().mean()

    def score(self) -> float:
        """The share of states in which the policy's first choice does not end the episode."""
        states = torch.randn(512, 3)
        return 1 - accuracy(self.policy(states), self.fatal(states).argmax(1))


@case(
    "Muesli-lunarlander 1",
    ISSUE.format("Itomigna2/Muesli-lunarlander", 1),
    kind="Q-learning",
    fault="A list that holds an episode is put in the replay, cleared, and filled anew.",
    fix="Each episode has a list of its own.",
    port="Q-learning in a corridor of ten rooms, of which episodes visit three in a row, farther and farther from the"
    " goal, in place of Muesli and a lander.",
    causes="All entries of the replay are the same list, so that there is only the most recent episode to learn from.",
    words=("same", "replay", "duplicate", "identical", "repeat", "forget"),
)
class SameList(Corridor):
    rate = 0.01
    steps = 500

    def __init__(self, fixed: bool) -> None:
        super().__init__(fixed)
        self.episodes = 0
        self.episode: list[Transitions] = []
        self.replay: list[list[Transitions]] = []

    def batch(self) -> Transitions:
        """An episode, and the places of 64 more in the replay, as shares of its length."""
        first = max(0, 6 - 7 * self.episodes // self.steps)
        self.episodes += 1
        rooms, actions = first + torch.randint(3, (16,)), torch.randint(4, (16,))
        after = (rooms + torch.tensor([-1, 1, 0, 0])[actions]).clamp(min=0)
        ended = after == self.rooms - 1
        return rooms, actions, after, ended.float(), torch.where(ended, 0.0, -1.0), torch.rand(64)

    def training_step(self, batch: Transitions, batch_idx: int) -> Tensor:
        *episode, places = batch
        if self.fixed:
            self.episode = []
        self.episode.clear()  # fault
        self.episode += zip(*episode, strict=True)
        self.replay.append(self.episode)
        track(self.net, self.target, 0.1)
        chosen = [self.replay[int(place * len(self.replay))] for place in places]
        drawn = [held[int(place * 1e4) % len(held)] for held, place in zip(chosen, places, strict=True)]
        replayed = tuple(torch.stack(values) for values in zip(*drawn, strict=True))
        values = self.net(self.seen(replayed[0])).gather(1, replayed[1].unsqueeze(1)).squeeze(1)
        return F.mse_loss(values, self.wanted(replayed))
