"""A step that is audited, and steps that are trained under a HealthMonitor."""

import torch
from toys import Toy, fit, fit_in_transformers

from hookboard import HealthMonitor, audit, watch


def audited(model, x, y, loss):
    return audit(model, (x, y), lambda batch: loss(model(batch[0]), batch[1]))


def watched(model, *losses, batch=(), optimizer=None, **options):
    """Train a step with each loss, a function of the model; return the monitor. Without a batch none is told."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = HealthMonitor(every_n_steps=1, **options)
    with watch(model, optimizer, [monitor]) as run:
        for loss in losses:
            with run.step(batch) if len(batch) else run.step():
                loss(model).backward()
                optimizer.step()
                optimizer.zero_grad()
    return monitor


def in_lightning(folder, net, data, **options):
    """Train a model that returns {"loss": ...} for a batch; return the monitor."""
    monitor = HealthMonitor(every_n_steps=1)
    fit(folder, Toy(net, loss=lambda found: found["loss"]), list(data), monitor, **options)
    return monitor


def in_hugging_face(folder, net, data, **options):
    monitor = HealthMonitor(every_n_steps=1)
    fit_in_transformers(folder, net, list(data), monitor, **options)
    return monitor
