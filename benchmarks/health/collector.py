"""What is seen of a training, taken without hookboard's own measuring.

It makes the looks that rules are asked about, and beside them what only other tools' rules need.
"""

import math
from collections import deque
from typing import Any

import numpy as np
import torch
from benchmarks.health.trace import Extra, Trace
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from hookboard.health import Look, Loss, Stepped, layers_of
from hookboard.hooks import Taps
from hookboard.measure import Moments
from hookboard.parameters import Weight, stepped_by, weights_of
from hookboard.recording import Reading
from hookboard.sites import Site, Stage

ADAPTIVE = (torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad)


class Collector(Callback):
    """Fills a trace with looks.

    Args:
        trace: what it fills.
        every: once in so many optimizer steps, and at the first.
    """

    def __init__(self, trace: Trace, every: int) -> None:
        self.trace = trace
        self.every = every
        self.rows: dict[Site, list[np.ndarray]] = {}
        self.extras: dict[str, Extra] = {}
        self.losses: deque[Loss] = deque()
        self.before: dict[str, Tensor] = {}
        self.step = self.seen = 0

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        names = {name: module for name, module in pl_module.named_modules() if name}
        leaves = {name: module for name, module in names.items() if not list(module.children())}
        self.weights = weights_of(names)
        owners = {id(weight.module) for weight in self.weights.values()}
        watched = {name: m for name, m in names.items() if name in leaves or id(m) in owners}
        self.trace.layers = layers_of(watched, self.weights)
        self.modules = leaves
        self.first: str | None = None
        self.taps = Taps(leaves, ("output", "input", "grad_output"), self._open)
        self.taps.attach()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self.batch_idx = batch_idx
        is_due = self.step == 0 or (self.step + 1) % self.every == 0
        self.stage: Stage = "train"
        self.taps.active = is_due

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        self.losses.append(Loss(self.step, self.batch_idx, float(loss.detach()) * trainer.accumulate_grad_batches))

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        if self.taps.active:
            for name, weight in stepped_by(optimizer, self.weights).items():
                self.before.setdefault(name, weight.in_use.clone())
            for name, weight in self.weights.items():
                if weight.grad is not None and Site(name, "parameter_grad") not in self.rows:
                    self._add(Site(name, "parameter_grad"), _by_unit(weight.grad))

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        steps = trainer.fit_loop.epoch_loop._batches_that_stepped  # noqa: SLF001  # as hookboard itself
        if trainer.fit_loop.epoch_loop._should_accumulate():  # noqa: SLF001
            return
        if self.taps.active:
            self.taps.active = False
            self.taps.settle()
            for name, weight in self.weights.items():
                self._add(Site(name, "parameter"), _by_unit(weight.in_use))
                if name in self.before:
                    before = self.before[name]
                    self._add(Site(name, "parameter_before"), _by_unit(before))
                    self._add(Site(name, "parameter_update"), _by_unit(weight.in_use.double() - before.double()))
            self.trace.entries.append(("look", self._look(trainer)))
            self.trace.extras.append((self.step, self.extras))
            self.rows, self.extras, self.before = {}, {}, {}
        self.step = steps + 1

    def on_validation_batch_start(self, trainer: Trainer, *args: Any) -> None:
        self.stage = "validate"
        self.taps.active = True

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.taps.active = False
        self.taps.settle()
        self.trace.entries.append(("evaluation", Look(self.step, 0, self._readings())))
        self.rows, self.extras = {}, {}

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.taps.detach()

    def _open(self, site: Site) -> Any:
        module = self.modules[site.name]

        def observe(tensor: Tensor) -> None:
            tensor = tensor.detach()
            if not tensor.is_floating_point():
                return
            if site.role == "input":
                self.first = site.name if self.first is None else self.first
                if site.name in self.extras or not isinstance(module, nn.ReLU | nn.Tanh | nn.Sigmoid):
                    return
                self.extras.setdefault(site.name, Extra()).read_input(tensor)
            elif site.role == "output" and isinstance(module, nn.ReLU | nn.Tanh | nn.Sigmoid):
                self.extras.setdefault(site.name, Extra()).read_output(_by_channel(tensor, module))
            if site.role != "input" or site.name == self.first:
                self._add(site, _by_channel(tensor, module))

        return observe

    def _add(self, site: Site, units: Tensor) -> None:
        self.rows.setdefault(site, []).append(rows_of(units))

    def _readings(self) -> dict[Site, Reading]:
        readings = {}
        for site, several in self.rows.items():
            several = [rows for rows in several if rows.shape == several[0].shape]
            channels = merged(np.stack(several))
            whole = merged(channels[:, None])[0]
            has_channels = site.role in ("output", "input", "parameter", "parameter_grad") and len(channels) > 1
            readings[site] = Reading(
                site, Moments(*whole.tolist()), {}, None, self.stage, channels=channels if has_channels else None
            )
        return readings

    def _look(self, trainer: Trainer) -> Look:
        losses = list(self.losses)
        self.losses.clear()
        stepped = {
            name: Stepped(type(optimizer).__name__, _rate(optimizer, weight), isinstance(optimizer, ADAPTIVE))
            for optimizer in trainer.optimizers
            for name, weight in stepped_by(optimizer, self.weights).items()
        }
        return Look(self.step, self.batch_idx, self._readings(), losses, stepped)


def _rate(optimizer: torch.optim.Optimizer, weight: Weight) -> float:
    held = {id(parameter) for parameter in weight.parameters}
    return next(float(g["lr"]) for g in optimizer.param_groups if held & set(map(id, g["params"])))


def _by_unit(weight: Tensor) -> Tensor:
    """Shape (units, others); one row of a vector."""
    return weight.detach().reshape(len(weight), -1) if weight.ndim > 1 else weight.detach().reshape(1, -1)


def _by_channel(tensor: Tensor, module: nn.Module) -> Tensor:
    """Shape (channels, samples and places)."""
    dimension = 1 if tensor.ndim == 4 else -1
    return tensor.movedim(dimension, 0).flatten(1) if tensor.ndim > 1 else tensor.reshape(1, -1)


def rows_of(units: Tensor) -> np.ndarray:
    """The rows of `hookboard.measure.FIELDS`, shape (units, 10), computed plainly."""
    if units.numel() and math.isfinite(units.sum(dtype=torch.float32).item()):
        single = units.float()
        variance, mean = torch.var_mean(single, 1, correction=0)
        count, none = torch.full_like(mean, units.shape[1]), torch.zeros_like(mean)
        sizes, zeros = single.abs().mean(1), (single == 0).sum(1)
        low, high = torch.aminmax(single, dim=1)
        columns = [count, mean, variance.sqrt(), sizes, zeros, none, none, none, low, high]
        return torch.stack(columns, 1).numpy().astype(np.float64)
    wide = units.double()
    finite = wide.isfinite()
    count = finite.sum(1)
    kept = torch.where(finite, wide, 0.0)
    mean = kept.sum(1) / count.clamp(min=1)
    deviation = (torch.where(finite, wide - mean[:, None], 0.0).square().sum(1) / count.clamp(min=1)).sqrt()
    columns = [
        count,
        mean,
        deviation,
        kept.abs().sum(1) / count.clamp(min=1),
        (wide == 0).sum(1),
        wide.isnan().sum(1),
        (wide == torch.inf).sum(1),
        (wide == -torch.inf).sum(1),
        torch.where(finite, wide, torch.inf).amin(1),
        torch.where(finite, wide, -torch.inf).amax(1),
    ]
    rows: np.ndarray = torch.stack([column.double() for column in columns], 1).numpy()
    return rows


def merged(rows: np.ndarray) -> np.ndarray:
    """Rows of several parts as if they were one, from shape (parts, units, 10) to (units, 10)."""
    if len(rows) == 1:
        only: np.ndarray = rows[0]
        return only
    count, mean, deviation, abs_mean = (rows[..., i] for i in range(4))
    whole = np.maximum(count.sum(0), 1)
    middle = (count * mean).sum(0) / whole
    with np.errstate(over="ignore", invalid="ignore"):
        spread = np.sqrt((count * (deviation**2 + (mean - middle) ** 2)).sum(0) / whole)
    columns = [
        count.sum(0),
        middle,
        spread,
        (count * abs_mean).sum(0) / whole,
        *(rows[..., i].sum(0) for i in range(4, 8)),
    ]
    return np.stack([*columns, rows[..., 8].min(0), rows[..., 9].max(0)], -1)
