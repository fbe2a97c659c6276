"""The extra call of CAMLogger leaves tensors, containers and generators in the attributes of a model as they were."""

import collections
import random

import numpy as np
import pytest
import torch
from callbacks.test_pictures import cnn, pictures_of
from torch import nn
from toys import Toy, events, fit

from hookboard import CAMLogger


def decays(number, x):
    """Change a tensor or an array in place."""
    number *= 0.9
    number += float(x.detach().mean())
    return float(number)


def grows(values, x):
    values.append(float(x.detach().mean()))
    return sum(values) / len(values)


def adds(values, x):
    values.add(float(x.detach().mean()))
    return sum(values) / len(values)


def remembers_gradients(held, x):
    held["mean"].mul_(0.9).add_(x.mean())
    return held["mean"].detach().clone()


KINDS = {
    "a generator of torch": (lambda: torch.Generator().manual_seed(3), lambda k, x: torch.rand((), generator=k)),
    "a generator of NumPy": (lambda: np.random.default_rng(0), lambda k, x: float(k.random())),
    "an old generator of NumPy": (lambda: np.random.RandomState(0), lambda k, x: k.rand()),
    "a generator of Python": (lambda: random.Random(0), lambda k, x: k.random()),
    "a tensor in a dict": (lambda: {"m": torch.zeros(())}, lambda k, x: decays(k["m"], x)),
    "a sparse tensor": (lambda: torch.ones(1).to_sparse(), lambda k, x: k.mul_(0.9).sum()),
    "a tensor that takes on a graph": (lambda: {"mean": torch.zeros(())}, remembers_gradients),
    "a nested tensor": (lambda: torch.nested.nested_tensor([torch.zeros(1)]), lambda k, x: decays(k.unbind()[0], x)),
    "a jagged tensor": (
        lambda: torch.nested.nested_tensor([torch.zeros(1)], layout=torch.jagged),
        lambda k, x: decays(k.values(), x),
    ),
    "a list in an object of a list": (lambda: [{"a": [[]]}], lambda k, x: grows(k[0]["a"][0], x)),
    "a deque": (collections.deque, grows),
    "a set in a tuple": (lambda: (set(),), lambda k, x: adds(k[0], x)),
    "an ordered dict": (collections.OrderedDict, lambda k, x: k.setdefault(len(k), len(k) % 3)),
    "a counter": (collections.Counter, lambda k, x: k.update("a") or k["a"] % 3),
    "a NumPy array": (lambda: np.zeros(()), decays),
    "a module that is no child": (lambda: [nn.BatchNorm2d(3)], lambda k, x: k[0](x).mean() + k[0].running_mean.mean()),
}


class Keeps(nn.Module):
    """Keeps something of each kind, and what came of each use of it."""

    def __init__(self):
        super().__init__()
        self.cnn = cnn()
        self.kept = {kind: KINDS[kind][0]() for kind in KINDS}
        self.itself, self.calls = [self], 0

    def forward(self, pictures):
        self.calls += 1
        used = {kind: KINDS[kind][1](kept, pictures) for kind, kept in self.kept.items()}
        if self.training:
            self.seen = {kind: float(torch.as_tensor(value).detach()) for kind, value in used.items()} | {
                "a number": self.calls
            }
        self.last_scores = self.cnn(pictures * (1 + 0.1 * sum(used.values()) + 0.01 * self.calls))
        return self.last_scores


def trained(folder, *callbacks):
    """The weights, and what came of the last use of each kind in training."""
    torch.manual_seed(0)
    model = Toy(Keeps())
    fit(folder, model, pictures_of(3), *callbacks, limit_val_batches=1.0, max_epochs=2)
    assert not model.net.last_scores.requires_grad, "those of the validation, which is under no_grad"
    return model.net.state_dict(), model.net.seen


@pytest.fixture(scope="module")
def with_and_without_maps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("maps")
    both = trained(folder, CAMLogger(every_n_steps=1)), trained(None)
    assert events(folder).Tags()["images"]
    return both


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested:UserWarning")
@pytest.mark.parametrize("kind", [*KINDS, "a number"])
def test_what_a_model_keeps_is_as_it_was_after_the_extra_call(kind, with_and_without_maps):
    with_maps, without = with_and_without_maps
    assert with_maps[1][kind] == without[1][kind]


def test_the_training_is_the_same_with_maps_and_without(with_and_without_maps):
    with_maps, without = with_and_without_maps
    for name, value in without[0].items():
        assert value.equal(with_maps[0][name]), name


def test_what_the_code_does_to_objects_of_its_own_stays(tmp_path):
    class Counter:
        count = 0

    class Counts(nn.Sequential):
        def forward(self, pictures):
            self.calls.count += 1
            return super().forward(pictures)

    model = Toy(Counts(cnn()))
    model.net.calls = Counter()
    fit(tmp_path, model, pictures_of(1), CAMLogger(every_n_steps=1), limit_val_batches=1.0, num_sanity_val_steps=0)
    assert model.net.calls.count == 3  # with our call
