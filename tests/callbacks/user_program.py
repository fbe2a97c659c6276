"""Programs of a user's that say what they see, and whether they see the same with our callbacks.

An effect is a function that changes some of a `User`'s program, so that it says how often something of theirs is
called: a mode, a class, a hook, an operator, a filter, a tracer. What is seen is compared part by part: before the
first step, in each step, and after the last. The first step is the one that is followed; every second one is measured.
`tests/tracing/test_side_effects.py` has what a step does besides.
"""

import contextlib
import random
import warnings
from collections import Counter

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.loggers import Logger
from torch import nn
from torch.utils.data import DataLoader
from toys import batches, trainer

from hookboard import ActivationLogger, GradientLogger, HealthMonitor, HookboardWarning, ParameterLogger, watch

STEPS = 4
IGNORED = [
    "ignore::hookboard.HookboardWarning",
    "ignore:Full backward hook is firing",
    "ignore:The .grad attribute of a Tensor",  # Dynamo looks at it
    "ignore:.torch.jit",
]
"""What the tests are not about."""


class User:
    """A program of a user's. An effect replaces some of it, and adds what it sees by `saw`."""

    def __init__(self, way):
        self.way = way
        self.parts = [[]]
        """What was seen before the first step, in each step up to the next one, and after the fit."""
        self.net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 4))
        self.data, self.sampler = batches(*[8] * STEPS), None
        self.around_fit = self.around_step = contextlib.nullcontext
        """Makes a context: of the fit, and of a step, which in a Trainer is the forward pass and the loss."""
        self.given = self.output = lambda it: it
        """What the network is given of a batch, and what the loss is given of its output."""
        self.during = lambda output: None
        """Is called with the output of each step; a tensor that it returns is added to the loss."""
        self.optimizer = lambda parameters: torch.optim.Adam(parameters, lr=0.01)
        self.at_end = []
        self.module, self.callbacks, self.loggers, self.options = InTrainer, [], [], {}
        """What a Trainer has of the user's."""

    def saw(self, *what):
        self.parts[-1].append(what)

    def loss(self, batch):
        self.parts.append([])
        output = self.output(self.net(self.given(batch)))
        loss, more = output.square().mean(), self.during(output)
        return loss + more if isinstance(more, torch.Tensor) else loss


class InTrainer(LightningModule):
    def __init__(self, user):
        super().__init__()
        self.net, self.user = user.net, user

    def training_step(self, batch):
        with self.user.around_step():
            return self.user.loss(batch)

    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        return batch

    def configure_optimizers(self):
        return self.user.optimizer(self.net.parameters())


class Forgets(Logger):
    name = version = ""

    def log_metrics(self, metrics, step=None):
        pass

    def log_hyperparams(self, *args, **kwargs):
        pass


def in_a_trainer(user, callbacks):
    data = DataLoader(user.data, batch_size=None, sampler=user.sampler, collate_fn=lambda batch: batch)
    user.in_trainer = user.module(user)
    options = {"logger": [Forgets(), *user.loggers], **user.options}
    trainer(None, *user.callbacks, *callbacks, **options).fit(user.in_trainer, data)


def in_a_loop(user, callbacks):
    optimizer = user.optimizer(user.net.parameters())
    with watch(user.net, optimizer, callbacks, Forgets()) if callbacks else contextlib.nullcontext() as run:
        for batch in user.data:
            with run.step(batch) if callbacks else contextlib.nullcontext(), user.around_step():
                loss = user.loss(batch)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


WAYS = {"in a Trainer": in_a_trainer, "in a loop": in_a_loop}


class Effects(dict):
    """The effects of a file by name. Called with one, it adds it."""

    def __call__(self, make):
        self[make.__name__] = make
        return make

    def cases(self, *ways):
        """The parameters of a test: each effect in each way to train."""
        ways = ways or WAYS
        return [
            pytest.param(make, way, id=name + f", {way}" * (len(ways) > 1))
            for name, make in self.items()
            for way in ways
        ]


def seen(make, way, callbacks):
    """What a user sees of a fit, by part; the last has what is drawn next, and the weights."""
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(0)
    user = User(way)
    make(user)
    with user.around_fit():
        WAYS[way](user, callbacks)
    user.parts.append([])
    for one in user.at_end:
        one()
    user.saw("drawn", torch.rand(1).item(), random.random(), np.random.rand())
    user.saw("weights", [p.tolist() for p in nn.Module.parameters(user.net) if p.requires_grad])
    return [[repr(what) for what in part] for part in user.parts]


def assert_the_same_is_seen(make, way):
    bare = seen(make, way, [])
    ours = [kind(every_n_steps=2) for kind in (HealthMonitor, ActivationLogger, GradientLogger, ParameterLogger)]
    watched = seen(make, way, ours)
    assert any(callback.readings for callback in ours)
    for number, (part, with_us) in enumerate(zip(bare, watched, strict=True)):
        assert Counter(with_us) == Counter(part), f"in part {number}"
        assert with_us == part


def counting(kind, user, *names):
    """A subclass of a class that says when its methods with these names are called."""

    def method(name):
        real = getattr(kind, name)

        def called(self, *args, **kwargs):
            user.saw(kind.__name__, name, *(args[:1] if args and isinstance(args[0], str) else ()))
            return real(self, *args, **kwargs)

        return called

    return type(f"Counting{kind.__name__}", (kind,), {name: method(name) for name in names})


class Does(nn.Module):
    """A layer that calls a function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Within(nn.Module):
    """A layer that runs another one in a context."""

    def __init__(self, module, context):
        super().__init__()
        self.module, self.context = module, context

    def forward(self, *args, **kwargs):
        with self.context():
            return self.module(*args, **kwargs)


def surely(function):
    """Make a context as `contextlib.contextmanager` does, whose end comes after an error too."""

    @contextlib.contextmanager
    def around(*args):
        running = function(*args)
        try:
            yield next(running)
        finally:
            next(running, None)

    return around


@contextlib.contextmanager
def noting_warnings(user, action):
    """Say in the end which warnings came under a filter; those of ours are left out."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.resetwarnings()
        warnings.simplefilter(action)
        yield
    for one in caught:
        if not issubclass(one.category, HookboardWarning):
            user.saw(action, one.category.__name__, str(one.message), one.lineno)
