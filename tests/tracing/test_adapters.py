"""Adapters in a step: which are found, and which of them cannot learn."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, dropout, linear
from torch.utils.checkpoint import checkpoint
from tracing.steps import audited

from hookboard.tracing.adapters import adapters_of
from hookboard.tracing.questions import Reader

torch.manual_seed(0)
X, CLASSES = torch.randn(16, 6), torch.arange(16) % 3


class Adapted(nn.Module):
    """A frozen weight and two factors, which `way` brings together; then a head that is trained."""

    def __init__(self, way, rank=2, outputs=5):
        super().__init__()
        torch.manual_seed(0)
        self.way = way
        self.base = nn.Linear(6, outputs).requires_grad_(False)
        self.down, self.up = nn.Linear(6, rank, bias=False), nn.Linear(rank, outputs, bias=False)
        self.a, self.b = nn.Parameter(torch.randn(6, rank)), nn.Parameter(torch.randn(rank, outputs))
        self.turned = nn.Parameter(torch.randn(6, outputs), requires_grad=False)
        self.bias = nn.Parameter(torch.randn(outputs), requires_grad=False)
        self.head = nn.Linear(outputs, 3)

    def forward(self, x):
        return self.head(self.way(self, x))


def by_modules(net, x):
    return net.base(x) + net.up(net.down(x)) * 0.25


def of_a_scaled_input(net, x):
    x = dropout(x, 0.0) * 1.0
    return net.base(x) + net.up(net.down(x)) * 0.25


def by_hand(net, x):
    y = net.base(x)
    y += 3 * (x @ net.a @ net.b)
    return y


def turned_around(net, x):
    return torch.addmm(net.bias, x, net.turned) + (x @ net.down.weight.T) @ net.b * 2


def after_a_cast(net, x):
    return net.base(x) + linear(linear(x.double(), net.down.weight.double()), net.up.weight.double()).float()


def two_at_once(net, x):
    return net.base(x) + net.up(net.down(x)) * 0.5 + (x @ net.a) @ net.b


WAYS = {
    by_modules: ["base.weight"],
    of_a_scaled_input: ["base.weight"],
    by_hand: ["base.weight"],
    turned_around: ["turned"],
    after_a_cast: ["base.weight"],
    two_at_once: ["base.weight", "base.weight"],
}


def traced(net):
    reader = Reader(net, (X, CLASSES))
    with reader.reading():
        cross_entropy(net(X), CLASSES)
    return adapters_of(reader.step)


@pytest.mark.parametrize("way", WAYS)
def test_adapters_beside_a_frozen_weight_are_found(way):
    assert [one.weight.name for one in traced(Adapted(way))] == WAYS[way]


def trained_beside(net, x):
    return nn.functional.linear(x, net.head.weight.new_ones(5, 6)) + net.up(net.down(x))


def with_an_activation(net, x):
    return net.base(x) + net.up(net.down(x).relu())


def of_another_input(net, x):
    return net.base(x) + net.up(net.down(x + 1))


@pytest.mark.parametrize("way", [trained_beside, with_an_activation, of_another_input])
def test_what_is_not_a_product_beside_a_frozen_weight_is_no_adapter(way):
    assert traced(Adapted(way)) == []


def test_two_layers_beside_one_that_is_trained_are_no_adapter():
    net = Adapted(by_modules)
    net.base.requires_grad_(True)
    assert traced(net) == []


def with_zeros(*names):
    def change(net):
        for name in names:
            nn.init.zeros_(net.get_submodule(name).weight)

    return change


def frozen(net):
    net.up.requires_grad_(False)
    net.down.requires_grad_(False)


def frozen_and_empty(net):
    frozen(net)
    nn.init.zeros_(net.up.weight)


def stuck(net):
    """One factor is 0, and the one that it could learn from is frozen at 0."""
    nn.init.zeros_(net.up.weight)
    nn.init.zeros_(net.down.weight)
    net.down.requires_grad_(False)


CANNOT = {
    with_zeros("up", "down"): ("alarm", "every trained factor is multiplied by an all-zero factor"),
    stuck: ("alarm", "every trained factor is multiplied by an all-zero factor"),
    frozen_and_empty: ("alarm", "both factors are frozen, and their product is 0"),
    frozen: ("note", "both factors are frozen"),
}


def found_in(net, rule="adapters"):
    return [one for one in audited(net, X, CLASSES, cross_entropy) if one.rule == rule]


@pytest.mark.parametrize("change", CANNOT)
def test_an_adapter_that_cannot_learn_is_named_with_the_cause(change):
    net = Adapted(by_modules)
    change(net)
    (one,) = found_in(net)
    severity, why = CANNOT[change]
    assert (one.severity, one.module) == (severity, "down")
    assert f"1 of 1 adapters (two factors next to a frozen weight) learn nothing: {why}" in one.evidence
    assert "(down.weight)" in one.evidence


def of_a_fixed_projection(net):
    nn.init.zeros_(net.up.weight)
    net.down.requires_grad_(False)


@pytest.mark.parametrize("change", [with_zeros("up"), with_zeros("down"), of_a_fixed_projection, lambda net: None])
def test_nothing_is_said_of_an_adapter_that_can_learn(change):
    net = Adapted(by_modules)
    change(net)
    assert found_in(net) == []


def test_nothing_is_said_of_factors_of_0_where_a_bias_gives_a_gradient():
    net = Adapted(by_modules)
    with_zeros("up", "down")(net)
    net.down.bias = nn.Parameter(torch.ones(2))
    assert found_in(net) == []
    cross_entropy(net(X), CLASSES).backward()
    assert net.up.weight.grad.any()


def test_a_frozen_adapter_beside_one_that_is_trained_is_a_note():
    net = Adapted(two_at_once)
    frozen_and_empty(net)
    (one,) = found_in(net)
    assert one.severity == "note"
    assert "1 of 2 adapters" in one.evidence


class Checkpointed(nn.Module):
    """Layers with adapters, each under a checkpoint of its own."""

    def __init__(self, is_reentrant):
        super().__init__()
        self.is_reentrant = is_reentrant
        self.layers = nn.ModuleList(Adapted(by_modules, outputs=6) for _ in range(2))
        self.last = nn.Linear(3, 3)
        for layer in self.layers:
            layer.head = nn.Identity()
        self.layers[1].head = nn.Linear(6, 3).requires_grad_(False)

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=self.is_reentrant)
        return self.last(x)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_a_checkpoint_without_an_input_that_needs_a_gradient_is_named():
    net = Checkpointed(True)
    line = Checkpointed.forward.__code__.co_firstlineno + 2
    (one,) = found_in(net, "cut")
    total = sum(each.requires_grad for each in net.parameters())
    assert one.evidence.startswith(
        f"checkpoint() with use_reentrant=True at test_adapters.py:{line} cuts the gradient of 4 of {total} trainable "
        "parameters: layers.0.down.weight"
    )
    assert "use_reentrant=False" in one.advice


def test_nothing_is_said_of_a_checkpoint_that_passes_gradients():
    assert found_in(Checkpointed(False), "cut") == []
