"""`Setup`: a training as plain data, which faults and controls change. `Task`: the LightningModule that runs it."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from benchmarks.health.data import Data
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

Batch = tuple[Tensor, Tensor]
LossFunction = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, -2).float(), targets.flatten())


@dataclass
class Setup:
    """A training.

    Args:
        base: the name of the architecture.
        net: the model; in the task it is called `net`.
        data: what it reads.
        layers: the layers with weights, in the order in which they run, as dotted names within `net`.
        optimizer: the class of the optimizer.
        options: its options.
        rates: the share of the learning rate by the beginning of a parameter's name; 1 otherwise.
        left_out: the beginnings of the names of parameters that no optimizer gets.
        schedule: the share of the learning rate at each step; None for a constant rate.
        loss: what is minimized.
        batch_size: samples in a batch.
        steps: optimizer steps.
        shuffle: whether the samples are drawn in random order.
        trainer: further arguments of the Trainer.
        on_batch: change a batch, given the step.
        on_step: what happens right before a step, by its number.
        task: the class that trains it.
        classifies: whether its outputs are logits of classes, so that it has an accuracy.
    """

    base: str
    net: nn.Module
    data: Data
    layers: list[str]
    optimizer: type[Optimizer] = torch.optim.AdamW
    options: dict[str, Any] = field(default_factory=lambda: {"lr": 1e-3})
    rates: dict[str, float] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    schedule: Callable[[int], float] | None = None
    loss: LossFunction = cross_entropy
    batch_size: int = 32
    steps: int = 200
    shuffle: bool = True
    trainer: dict[str, Any] = field(default_factory=dict)
    on_batch: list[Callable[[int, Batch], Batch]] = field(default_factory=list)
    on_step: dict[int, Callable[["Task"], None]] = field(default_factory=dict)
    task: "type[Task] | None" = None
    classifies: bool = True

    def layer(self, name: str) -> Any:
        """A module of the net."""
        return self.net.get_submodule(name)

    @property
    def middle(self) -> str:
        """A layer with weights from the middle of the net."""
        return self.layers[len(self.layers) // 2]

    @property
    def entrance(self) -> list[str]:
        """The layers that take the batch: the first with weights, and a Flatten before it."""
        first = next(iter(dict(self.net.named_children())))
        return [first, self.layers[0]] if first == "flatten" else [self.layers[0]]

    def behind(self, name: str) -> str:
        """The layer that runs next in a chain: the activation of a layer, as a rule."""
        names = [child for child, _ in self.net.named_children()]
        return names[names.index(name) + 1]

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight of two or more dimensions, with its name."""
        return ((name, p) for name, p in self.net.named_parameters() if p.ndim > 1)


class Task(LightningModule):
    """Trains a setup, and keeps of every step the loss, the cross entropy, whatever is minimized, and the accuracy.

    Args:
        setup: the training.
        seed: draws the order of the samples.
    """

    def __init__(self, setup: Setup, seed: int) -> None:
        super().__init__()
        self.plan = setup
        self.seed = seed
        self.net = setup.net
        self.losses: list[float] = []
        self.entropies: list[float] = []
        self.accuracies: list[float] = []
        self.held_out: list[tuple[int, float, float]] = []
        self._parts: list[tuple[float, float]] = []

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(inputs)  # type: ignore[no-any-return]  # a module's call is untyped

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        inputs, targets = self.changed(batch)
        logits = self(inputs)
        loss = self.plan.loss(logits, targets)
        self.losses.append(loss.item())
        if self.plan.classifies:
            entropy, accuracy = judged(logits, targets)
            self.entropies.append(entropy)
            self.accuracies.append(accuracy)
        return loss

    def changed(self, batch: Batch) -> Batch:
        act = self.plan.on_step.get(self.global_step)
        if act is not None:
            act(self)
        for change in self.plan.on_batch:
            batch = change(self.global_step, batch)
        return batch

    def on_validation_epoch_start(self) -> None:
        self._parts = []

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        logits = self(batch[0])
        if self.plan.classifies:
            self._parts.append(judged(logits, batch[1]))

    def on_validation_epoch_end(self) -> None:
        if self._parts:
            entropy, accuracy = torch.tensor(self._parts, dtype=torch.float64).mean(0).tolist()
            self.held_out.append((self.global_step, entropy, accuracy))

    def configure_optimizers(self) -> Any:
        optimizer = self.plan.optimizer(self.groups(), **self.plan.options)
        if self.plan.schedule is None:
            return optimizer
        schedule = LambdaLR(optimizer, self.plan.schedule)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def groups(self) -> list[dict[str, Any]]:
        """The trainable parameters, in one group for each share of the learning rate."""
        plan = self.plan
        groups: dict[float, list[Tensor]] = {}
        for name, parameter in plan.net.named_parameters():
            share = next((share for start, share in plan.rates.items() if name.startswith(start)), 1.0)
            if parameter.requires_grad and not name.startswith(tuple(plan.left_out)):
                groups.setdefault(share, []).append(parameter)
        return [{"params": params, "lr": plan.options["lr"] * share} for share, params in groups.items()]

    def train_dataloader(self) -> DataLoader[Batch]:
        data: Any = TensorDataset(self.plan.data.inputs, self.plan.data.targets)
        order = torch.Generator().manual_seed(self.seed)
        return DataLoader(data, self.plan.batch_size, shuffle=self.plan.shuffle, generator=order, drop_last=True)

    def val_dataloader(self) -> DataLoader[Batch]:
        data = self.plan.data
        held_out: Any = TensorDataset(data.held_out_inputs[:128], data.held_out_targets[:128])
        return DataLoader(held_out, 64)


def judged(logits: Tensor, targets: Tensor) -> tuple[float, float]:
    """Cross entropy (NaN becomes inf) and accuracy."""
    logits = logits.detach()
    loss = cross_entropy(logits, targets).item()
    right = (logits.argmax(-1) == targets).float().mean().item()
    return math.inf if math.isnan(loss) else loss, right


def scale_rate(task: Task, factor: float) -> None:
    """Multiply the learning rate from now on, also of what a schedule starts from."""
    for optimizer in task.trainer.optimizers:
        for group in optimizer.param_groups:
            group["lr"] *= factor
            if "initial_lr" in group:
                group["initial_lr"] *= factor
    for config in task.trainer.lr_scheduler_configs:
        config.scheduler.base_lrs = [rate * factor for rate in config.scheduler.base_lrs]
