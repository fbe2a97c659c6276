"""Which gradients are read after each backward pass, and that they tell."""

import math

import pytest
import torch
from torch import nn

from hookboard.tracing import black_box as file
from hookboard.tracing.black_box import MAX_SENTINELS, all_finite, nonfinite_gradients, sentinels_of

pytestmark = pytest.mark.unit


def with_gradients(model):
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    return model


SPOILED = {
    "a bias": (lambda: [nn.Linear(100, 100), nn.Linear(100, 100)], lambda m: m[1].bias.grad[3].fill_(math.nan)),
    "one unit of a large weight without a bias": (
        lambda: [nn.Linear(500, 500, bias=False) for _ in range(3)],
        lambda m: m[2].weight.grad[7].fill_(math.inf),
    ),
    "opposite infinities, which do not cancel": (
        lambda: [nn.ReLU(), nn.Linear(2, 2)],
        lambda m: m[1].bias.grad.copy_(torch.tensor([math.inf, -math.inf])),
    ),
    "a complex number": (
        lambda: [nn.Linear(2, 2, dtype=torch.complex64), nn.Linear(2, 2)],
        lambda m: m[0].bias.grad[1].fill_(complex(1.0, math.nan)),
    ),
}


@pytest.mark.parametrize("what", SPOILED)
def test_a_gradient_that_is_not_finite_is_seen(what):
    layers, spoil = SPOILED[what]
    model = with_gradients(nn.Sequential(*layers()))
    assert all_finite(sentinels_of(model))
    spoil(model)
    assert not all_finite(sentinels_of(model))


def test_no_more_are_read_than_the_most():
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(1000)))
    assert len(sentinels_of(model)) <= MAX_SENTINELS + 2


def test_without_gradients_there_is_nothing_to_say():
    assert all_finite(sentinels_of(nn.ReLU()))
    model = with_gradients(nn.Linear(2, 2))
    sentinels, model.bias.grad = sentinels_of(model), None
    assert all_finite(sentinels)
    model.weight.grad[0] = math.nan
    assert not all_finite(sentinels)


def test_mixed_types_and_sparse_gradients():
    model = with_gradients(nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2, dtype=torch.float64), nn.Embedding(4, 2)]))
    model[2].weight.grad = model[2].weight.grad.to_sparse()
    assert all_finite(sentinels_of(model))
    assert nonfinite_gradients(model) == {}
    model[2].weight.grad = (model[2].weight.grad.to_dense() * math.nan).to_sparse()
    assert nonfinite_gradients(model) == {"2.weight": "2"}


def embedding(count):
    """A model whose embedding has a sparse gradient."""
    model = with_gradients(nn.Sequential(nn.Embedding(count, 64, sparse=True), nn.Linear(64, 300), nn.Linear(300, 3)))
    model[0].weight.grad = torch.ones(count, 64).to_sparse(1)
    return model


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("count", [10, 3000], ids=["small", "large"])
def test_a_row_of_a_sparse_gradient_alone_is_seen(count, value):
    model = embedding(count)
    sentinels = sentinels_of(model)
    assert all_finite(sentinels)
    assert nonfinite_gradients(model) == {}
    spoiled = torch.ones(count, 64)
    spoiled[7] = value
    model[0].weight.grad = spoiled.to_sparse(1)
    assert not all_finite(sentinels)
    assert nonfinite_gradients(model) == {"0.weight": "0"}


def test_a_sparse_gradient_with_several_numbers_for_one_place_is_seen():
    model = embedding(10)
    values = torch.ones(3, 64)
    values[1, 0] = math.nan
    model[0].weight.grad = torch.sparse_coo_tensor(torch.tensor([[4, 4, 4]]), values, (10, 64), check_invariants=True)
    assert not all_finite(sentinels_of(model))
    assert nonfinite_gradients(model) == {"0.weight": "0"}


class Shared(torch.Tensor):
    """Like a DTensor: an operation on it would be a collective."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if getattr(function, "__name__", "") in ("cat", "flatten"):
            raise AssertionError("this rank alone has entered a collective")
        return super().__torch_function__(function, types, args, kwargs or {})


def test_gradients_of_other_kinds_are_not_joined_with_the_plain_ones(monkeypatch):
    model = with_gradients(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)))
    model[1].bias.grad = torch.ones(2).as_subclass(Shared)
    monkeypatch.setattr(file, "local", lambda gradient: gradient.as_subclass(torch.Tensor))
    assert all_finite(sentinels_of(model))
