"""A training that keeps the raw tensors of its steps, and what a verdict says of it."""

import math
import re

import numpy as np
import torch
from torch import nn
from toys import Toy, fit

from hookboard import HealthMonitor

STEPS, EVERY = 100, 10
"""Eleven looks, of which the last is the last step: up to twelve, all rules are asked at each."""


class Recorded(Toy):
    """Keeps the tensors of each step, by hooks of its own: the last step's are those of the last look."""

    def __init__(self, net, loss=None, rate=1e-2, optimizer=torch.optim.SGD):
        super().__init__(net)
        self.loss, self.rate, self.optimizer = loss, rate, optimizer
        self.outputs, self.gradients, self.losses = {}, {}, []
        for name, module in net.named_children():
            module.register_forward_hook(self._keep(f"net.{name}"))

    def _keep(self, name):
        def hook(module, args, output):
            if not output.requires_grad:  # in validation
                return
            self.outputs[name] = output.detach().double().numpy().copy()
            output.register_hook(lambda grad: self.gradients.update({name: grad.double().numpy().copy()}))

        return hook

    def training_step(self, batch):
        x, y = batch
        self.batch = x.double().numpy()
        loss = self.loss(self.net(x), y)
        self.losses.append(loss.item())
        return loss

    def on_before_optimizer_step(self, optimizer):
        self.before = {name: p.detach().clone().double().numpy() for name, p in self.named_parameters()}
        self.grads = {n: p.grad.double().numpy().copy() for n, p in self.named_parameters() if p.grad is not None}

    def on_train_batch_end(self, *args):
        self.after = {name: p.detach().clone().double().numpy() for name, p in self.named_parameters()}

    def configure_optimizers(self):
        return self.optimizer(self.parameters(), lr=self.rate)


def classes(count=STEPS, width=8, seed=0):
    made = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 32, width, generator=made)
    return [(one, (one[:, :3] @ torch.eye(3)).argmax(1)) for one in x]


def verdict_of(tmp_path, model, data, rule, **options):
    """The first verdict of a rule."""
    monitor = HealthMonitor(every_n_steps=EVERY, rules=[rule])
    fit(tmp_path, model, data, monitor, **options)
    return monitor.verdicts[0]


def said(tmp_path, model, data, rule, **options):
    """The evidence of the first verdict of a rule."""
    return verdict_of(tmp_path, model, data, rule, **options).evidence


def numbers(pattern, evidence):
    """The numbers in place of `#` in a pattern."""
    found = re.search(re.escape(pattern).replace(r"\#", r"(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)"), evidence)
    assert found, evidence
    return [float(number) for number in found.groups()]


def rms(tensor):
    return math.sqrt(np.mean(tensor**2))


def sized(*layers, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(*[layer() for layer in layers])


def linear(*sizes):
    return lambda: nn.Linear(*sizes)


CROSS_ENTROPY = nn.functional.cross_entropy
