"""The loss of the best constant answer, against the least that a search over constants finds."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, l1_loss, mse_loss

from hookboard.tracing.questions import Reader

torch.manual_seed(0)
X = torch.randn(16, 4)
REAL = torch.randn(16, 3) * torch.tensor([1.0, 5.0, 0.1]) + 2
BITS = (torch.rand(16, 3) < 0.3).float()


def facts_of(loss, target, *others):
    model = nn.ModuleList([nn.Linear(4, 3), *others])
    reader = Reader(model, (X, target))
    with reader.reading():
        reader.take_loss(loss(model[0](X), target))
    return reader.facts()


def searched(loss, target):
    """The least loss of outputs that are the same for every sample."""
    answer = target.double().mean(0).requires_grad_()
    optimizer = torch.optim.LBFGS([answer], lr=0.1, max_iter=1000, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        value = loss(answer.expand(len(target), -1), target.double())
        value.backward()
        return value

    optimizer.step(closure)
    return closure().item()


KNOWN = {
    "one by hand, summed": (lambda o, t: (o - t).pow(2).sum(), REAL),
    "twice a squared error": (lambda o, t: 2 * mse_loss(o, t, reduction="sum") / len(t), REAL),
    "a binary cross entropy": (binary_cross_entropy_with_logits, BITS),
}


@pytest.mark.parametrize("name", KNOWN)
def test_it_is_the_least_loss_of_a_constant(name):
    loss, target = KNOWN[name]
    assert facts_of(loss, target).constant_loss == pytest.approx(searched(loss, target), rel=1e-4)


def test_of_an_absolute_error_it_is_that_of_the_median():
    """Its gradient jumps, so that all targets are tried: the best constant is one of them."""
    least = [min(float((column - answer).abs().mean()) for answer in column) for column in REAL.T]
    assert facts_of(l1_loss, REAL).constant_loss == pytest.approx(sum(least) / 3, rel=1e-5)


UNKNOWN = {
    "positives that count more": (
        lambda o, t: binary_cross_entropy_with_logits(o, t, pos_weight=torch.tensor(6.0)),
        BITS,
    ),
    "errors of one column": (lambda o, t: (o - t).square()[:, -1].mean(), REAL),
    "class numbers": (cross_entropy, torch.arange(16) % 3),
    "shapes that broadcast": (lambda o, t: mse_loss(o[:, :1], t), REAL),
}


@pytest.mark.parametrize("name", UNKNOWN)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_of_other_losses_it_is_not_known(name):
    assert math.isnan(facts_of(*UNKNOWN[name]).constant_loss)


SINGLE = {
    "one term": (lambda o, t: cross_entropy(o, t), False),
    "a term and a penalty of weights": (lambda o, t: cross_entropy(o, t) + 1e-3 * WEIGHT.square().sum(), False),
    "a term for each sample": (lambda o, t: sum(cross_entropy(o[i], t[i]) for i in range(4)) / 4, False),
    "two heads": (lambda o, t: cross_entropy(o, t) + cross_entropy(HEAD(o), t), True),
    "two means": (lambda o, t: torch.stack([cross_entropy(o, t), helped(o, t)]).mean(), True),
}


def helped(o, t):
    return cross_entropy(2 * o, t)


WEIGHT, HEAD = nn.Parameter(torch.ones(3)), nn.Linear(3, 3)


@pytest.mark.parametrize("name", SINGLE)
def test_a_loss_of_several_terms_that_depend_on_the_batch_is_a_sum(name):
    loss, is_sum = SINGLE[name]
    assert facts_of(loss, torch.arange(16) % 3, HEAD).is_sum is is_sum


ITEMS = nn.Embedding(9, 3)
NUMBERS = torch.arange(16) % 9


def picked(output, target):
    return -output.log_softmax(1)[torch.arange(16), target].mean()


def density(output, target):
    return -(output.log_softmax(1) - (target[:, None] - torch.arange(3.0)).square()).logsumexp(1).mean()


CLASSES_OF = {
    "a product with embeddings": (lambda o, t: cross_entropy(o @ ITEMS.weight.T, t), 9),
    "by hand": (lambda o, t: picked(o @ ITEMS.weight.T, t), 9),
    "a mixture of densities": (density, 0),
    "classes in between": (lambda o, t: mse_loss(o.log_softmax(1).sum(1), t.float()), 0),
}


@pytest.mark.parametrize("name", CLASSES_OF)
def test_the_number_of_classes_is_the_width_of_what_the_loss_takes(name):
    loss, count = CLASSES_OF[name]
    facts = facts_of(loss, NUMBERS, ITEMS)
    assert (facts.classes, facts.is_sum) == (count, not count)
