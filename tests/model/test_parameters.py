"""Whether the weights of a model are still those that were found is told without finding them again."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from hookboard.model.state import are_unchanged, weights_of


def modules():
    first, last = nn.Linear(3, 3), nn.Linear(3, 3)
    last.weight = first.weight
    return {"first": first, "relu": nn.ReLU(), "last": last, "norm": nn.BatchNorm1d(3, affine=False)}


def replace_a_parameter(found):
    found["first"].bias = nn.Parameter(torch.zeros(3))


def tie_what_was_apart(found):
    found["last"].bias = found["first"].bias


def prune_a_weight(found):
    prune.l1_unstructured(found["first"], "weight", amount=1)


def parametrize_a_weight(found):
    parametrizations.weight_norm(found["last"], "bias")


def exchange_a_module(found):
    found["last"] = nn.Linear(3, 3)


CHANGES = [replace_a_parameter, tie_what_was_apart, prune_a_weight, parametrize_a_weight, exchange_a_module]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_other_weights_are_noticed(change):
    found = modules()
    weights = weights_of(found)
    assert are_unchanged(weights, found)
    change(found)
    assert not are_unchanged(weights, found)
