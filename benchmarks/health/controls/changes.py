"""Healthy trainings whose loss rises by design, or lies where nobody expects it: another task, another target."""

import copy
from typing import Any

import torch
from benchmarks.health.controls.registry import control
from benchmarks.health.training import Batch, Setup, Task, cross_entropy
from torch import Tensor, nn


@control("mlp deep")
def task_replaced(s: Setup) -> None:
    """From step 100 on the pixels come in another order: continual learning. The loss leaps, and falls again."""
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))

    def permute(step: int, batch: Batch) -> Batch:
        return (batch[0].flatten(1)[:, order].view_as(batch[0]) if step >= 100 else batch[0]), batch[1]

    s.on_batch.append(permute)
    s.steps = 300


@control("mlp cnn_bn")
def classes_join(s: Setup) -> None:
    """A curriculum: three classes until step 80, all of them from then on."""
    few = (s.data.targets < 3).nonzero()[:, 0]

    def choose(step: int, batch: Batch) -> Batch:
        if step >= 80:
            return batch
        picked = few[torch.randint(len(few), batch[1].shape)]
        return s.data.inputs[picked], s.data.targets[picked]

    s.on_batch.append(choose)
    s.steps = 300


@control("mlp")
def labels_become_noisy(s: Setup) -> None:
    """Two of five labels are random from step 120 on: the loss rises to what cannot be learnt."""

    def blur(step: int, batch: Batch) -> Batch:
        is_random = torch.rand(batch[1].shape) < (0.4 if step >= 120 else 0.0)
        return batch[0], torch.where(is_random, torch.randint(10, batch[1].shape), batch[1])

    s.on_batch.append(blur)
    s.steps = 300


class QLearner(Task):
    """Learns the worth of naming a digit, against a copy of itself that is renewed every 60 steps."""

    def __init__(self, setup: Setup, seed: int) -> None:
        super().__init__(setup, seed)
        self.target = copy.deepcopy(self.net).requires_grad_(False)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        if self.global_step % 60 == 0:
            self.target.load_state_dict(self.net.state_dict())
        named = torch.randint(10, batch[1].shape)
        with torch.no_grad():
            worth = (named == batch[1]).float() + 0.9 * self.target(batch[0].roll(1, 0)).max(1).values
        answers = self.net(batch[0]).gather(1, named[:, None])[:, 0]
        loss = nn.functional.smooth_l1_loss(answers, worth)
        self.losses.append(loss.item())
        return loss


@control("mlp")
def target_renewed(s: Setup) -> None:
    """Q-learning: the loss leaps whenever the target network is renewed."""
    s.task, s.classifies, s.steps = QLearner, False, 400


@control("mlp deep")
def likelihood(s: Setup) -> None:
    """A mean and a deviation are learnt by their likelihood: the loss falls far below 0 and is wilder the lower."""
    s.net.head = nn.Linear(s.layer("head").in_features, 2)
    s.classifies, s.steps = False, 400
    s.options["lr"] = 3e-4

    def negative_log(outputs: Tensor, targets: Tensor) -> Tensor:
        mean, log = outputs[:, 0], outputs[:, 1].clamp(-4, 5)
        return (0.5 * (((targets - 4.5) * 0.1 - mean) / log.exp()) ** 2 + log).mean()

    s.loss = negative_log


@control("mlp")
def counts(s: Setup) -> None:
    """Counts of about a thousand under a Poisson likelihood: its optimum lies at -6,000."""
    s.net.head = nn.Linear(s.layer("head").in_features, 1)
    s.classifies, s.steps = False, 300
    s.loss = lambda outputs, targets: nn.functional.poisson_nll_loss(
        outputs[:, 0], torch.poisson(torch.exp(7 + 0.1 * (targets - 4.5)))
    )


@control("mlp")
def heads_in_turn(s: Setup) -> None:
    """Two tasks that take turns, batch by batch, each with a head of its own."""
    s.net.head = nn.Identity()
    body = s.net
    s.net = nn.ModuleDict({"body": body, "digit": nn.Linear(64, 10), "size": nn.Linear(64, 1)})
    s.layers = [f"body.{name}" for name in s.layers[:-1]] + ["digit", "size"]
    s.classifies, s.task = False, _InTurn


class _InTurn(Task):
    net: Any

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net["digit"](self.net["body"](inputs))  # type: ignore[no-any-return]  # untyped call

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        inputs = self.net["body"](batch[0])
        if batch_idx % 2:
            loss = nn.functional.mse_loss(self.net["size"](inputs)[:, 0], batch[1] - 4.5)
        else:
            loss = cross_entropy(self.net["digit"](inputs), batch[1])
        self.losses.append(loss.item())
        return loss


@control("mlp")
def regression_resumed(s: Setup) -> None:
    """A trained regression of one noisy number is trained on at a low rate: its loss no longer falls."""
    s.net.head = nn.Linear(s.layer("head").in_features, 1)
    s.classifies, s.steps = False, 300
    drawn = torch.Generator().manual_seed(0)
    s.data.targets = s.data.targets - 4.5 + 2 * torch.randn(len(s.data.targets), generator=drawn)
    s.loss = lambda outputs, targets: nn.functional.mse_loss(outputs[:, 0], targets)
    optimizer = torch.optim.AdamW(s.net.parameters(), 3e-3)
    for _ in range(300):
        picked = torch.randint(len(s.data.targets), (32,))
        optimizer.zero_grad()
        s.loss(s.net(s.data.inputs[picked]), s.data.targets[picked]).backward()
        optimizer.step()
    s.options["lr"] = 1e-4
