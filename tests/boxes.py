"""A callback that calls a black box as `HealthMonitor` does, and models with planted faults."""

import random

import numpy as np
import torch
from lightning.pytorch import Callback
from toys import Toy, fit

from hookboard.loops.trainer import TrainerLoop
from hookboard.tracing.black_box import BlackBox


class Box(Callback):
    def __init__(self, is_scaled=False):
        self.options = {"is_scaled": is_scaled}

    def on_fit_start(self, trainer, pl_module):
        self.box = BlackBox(pl_module, world_size=trainer.world_size, **self.options)

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.batch = batch
        self.box.begin_batch(batch_idx, TrainerLoop(trainer).logged_step)

    def on_before_backward(self, trainer, pl_module, loss):
        self.box.before_backward(loss, batch=self.batch)

    def on_after_backward(self, trainer, pl_module):
        self.box.after_backward()

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.box.before_optimizer_step()


class Keeps(Toy):
    """Keeps the losses, and draws numbers of every generator."""

    def __init__(self, net, loss=None):
        super().__init__(net, loss)
        self.losses = []

    def training_step(self, batch):
        loss = super().training_step(batch) + 0 * (torch.rand(()) + np.random.rand() + random.random())
        self.losses.append(loss.detach().clone())
        return loss


def events_of(model, data, **options):
    box = Box(**options.pop("box", {}))
    fit(None, model, data, box, **options)
    return box.box.events


def only_event(model, data, **options):
    (event,) = events_of(model, data, **options)
    return event


def bits(tensor):
    return tensor.detach().reshape(-1).view(torch.uint8).clone()


def trained(make, data, callbacks, **options):
    """Everything that a run leaves, in bits."""
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    model = make()
    run = fit(None, model, data, *callbacks, **options)
    state = {name: bits(value) for name, value in model.state_dict().items()}
    state |= {f"gradient of {name}": bits(p.grad) for name, p in model.named_parameters() if p.grad is not None}
    state |= {f"loss {i}": bits(loss) for i, loss in enumerate(model.losses)}
    state["random"] = torch.get_rng_state()
    state |= {f"logged {name}": bits(value) for name, value in run.logged_metrics.items()}
    return state, (np.random.rand(), random.random(), run.global_step)


def assert_undisturbed(make, data, **options):
    box = Box()
    bare, watched = trained(make, data, [], **options), trained(make, data, [box], **options)
    assert bare[0].keys() == watched[0].keys()
    for name, value in bare[0].items():
        other = watched[0][name]
        assert value.equal(other) if torch.is_tensor(value) else value.keys() == other.keys(), name
    assert bare[1] == watched[1]
    assert box.box.events
    return box.box
