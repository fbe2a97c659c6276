"""A part of the gradient is asked before the backward pass: that leaves the run as it is, or it is not asked."""

import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, dropout2d, kl_div, linear
from toys import Toy, batches, fit, newer_torch

from hookboard import HealthMonitor
from hookboard.tracing.questions import Reader
from hookboard.tracing.step import audit

torch.manual_seed(0)
X, CLASSES = torch.randn(8, 4), torch.arange(8) % 3


class Steps(Toy):
    """Keeps the weights and gradients of each step."""

    def __init__(self, make):
        torch.manual_seed(0)
        net, self.loss_of = make()
        super().__init__(net)
        self.seen = []

    def training_step(self, batch, batch_idx):
        return self.loss_of(self.net, batch)

    def on_after_backward(self):
        self.seen += [(p.tolist(), None if p.grad is None else p.grad.tolist()) for p in self.parameters()]


def data_of_a_weight():
    def loss_of(net, x):
        weight = net.weight.data
        weight.mul_(0.5)
        return (net(x) + linear(x, weight)).square().mean()

    return nn.Linear(4, 3), loss_of


def weights_as_out():
    net = nn.Linear(4, 3)
    net.mean = nn.Parameter(torch.zeros(8, 4), requires_grad=False)

    def loss_of(net, x):
        torch.add(net.mean, x, out=net.mean)
        return net(net.mean).square().mean()

    return net, loss_of


def embedding_with_max_norm():
    """Its weight is used by another layer too, which keeps it for the backward pass."""

    def loss_of(net, x):
        tokens = (x.abs() * 5).long()
        return linear(net(tokens), net.weight).square().mean()

    return nn.Embedding(30, 4, max_norm=0.5), loss_of


@pytest.mark.trains
@pytest.mark.parametrize("make", [data_of_a_weight, weights_as_out, embedding_with_max_norm])
def test_a_weight_that_the_step_changes_in_place_is_changed_once(make):
    alone, followed = Steps(make), Steps(make)
    fit(None, alone, batches(8, 8))
    fit(None, followed, batches(8, 8), HealthMonitor())
    assert alone.seen == followed.seen


CALLS = []


@torch.library.custom_op("hookboard_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    CALLS.append(1)
    return x * 2


twice.register_autograd(lambda context, gradient: gradient * 2)


def test_a_custom_operator_runs_once():
    net = nn.Linear(4, 3)
    CALLS.clear()
    audit(net, (X, CLASSES), lambda batch: cross_entropy(twice(net(batch[0])), batch[1]))
    assert len(CALLS) == 1


def test_a_warning_that_a_function_of_torch_gives_comes_once():
    net = nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(1))

    def step(batch):
        x = dropout2d(batch[0][:, :, None])[:, :, 0]  # which in torch 2.6 warns of its own line, later of its caller's
        return kl_div(net(x), batch[1])

    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        audit(net, (X, torch.full((8, 3), 1 / 3)), step)
    assert len(given) == 2


def asked(step, *batch, model=None):
    """Why nothing was asked of the graph of a loss; "" if it was."""
    model = nn.Linear(4, 3) if model is None else model
    reader = Reader(model, list(batch))
    with reader.reading():
        reader.take_without_backward(step(model, *batch))
    reader.findings()
    return reader.step.not_asked


def with_hook(model, x, y):
    output = model(x)
    output.register_hook(lambda gradient: None)
    return cross_entropy(output, y)


def with_hook_on_node(model, x, y):
    output = model(x)
    output.grad_fn.register_hook(lambda *gradients: None)
    return cross_entropy(output, y)


def with_prehook_on_node(model, x, y):
    output = model(x)
    output.grad_fn.register_prehook(lambda gradients: None)
    return cross_entropy(output, y)


def with_checkpoint(model, x, y):
    return cross_entropy(torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False), y)


def with_custom_operator(model, x, y):
    return cross_entropy(twice(model(x)), y)


def with_thread(model, x, y):
    with ThreadPoolExecutor(1) as pool:
        return cross_entropy(model(x) + pool.submit(model, x).result(), y)


def plain(model, x, y):
    return cross_entropy(model(x), y)


@newer_torch
@pytest.mark.parametrize(
    ("step", "why"),
    [
        (plain, ""),
        (with_hook, "the step registers hooks on tensors"),
        (with_hook_on_node, "the step registers hooks on tensors"),
        (with_prehook_on_node, "the step registers hooks on tensors"),
        (with_checkpoint, "what autograd saves is packed by hooks, as under activation checkpointing"),
        (with_thread, "the step has parts that cannot be inspected"),
        (with_custom_operator, "the step uses a custom autograd function"),
    ],
)
def test_nothing_is_asked_where_code_of_the_user_would_run_and_why_is_said(step, why):
    assert asked(step, X, CLASSES) == why


@newer_torch
@pytest.mark.compiles
@pytest.mark.trains
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_a_hook_in_compiled_code_runs_once():
    calls = []

    def with_hook_inside(net, hidden):
        output = net[0](hidden)
        output.register_hook(lambda gradient: calls.append(1))
        return output

    compiled = torch.compile(with_hook_inside, backend="eager")

    def loss_of(net, x):
        hidden = net[0](x)
        return cross_entropy(net[1](hidden + compiled(net, hidden)), CLASSES)

    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    fit(None, Steps(lambda: (net, loss_of)), batches(8, 8), HealthMonitor())
    assert len(calls) == 2
