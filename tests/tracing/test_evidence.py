"""The numbers of what a step's rules and the experiments say, each against float64 over the raw tensors."""

import re

import numpy as np
import pytest
import torch
from oracle import losses_of_descent
from recorded import numbers
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, kl_div, mse_loss, nll_loss
from torch.optim import SGD
from tracing.steps import audited

from hookboard.experiments.experiment import Setting, experiment

torch.manual_seed(0)
X = torch.randn(16, 4)
CLASSES = torch.arange(16) % 3
REAL = torch.linspace(-2, 2, 16).unsqueeze(1)


def net(*tail, outputs=3):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, outputs), *tail)


def evidence_of(rule, model, loss, target):
    (found,) = (one for one in audited(model, X, target, loss) if one.rule == rule)
    return found.evidence


def outputs_of(model):
    return model.double()(X.double()).detach()


def ends(tensor, digits=3):
    return [float(f"{number:.{digits}g}") for number in (tensor.min(), tensor.max())]


def test_what_the_inputs_of_nll_loss_sum_to():
    model = net()
    told = numbers("the exp of its input sums to between # and #", evidence_of("loss_input", model, nll_loss, CLASSES))
    assert told == ends(outputs_of(model).exp().sum(1))


def test_the_range_of_what_kl_div_takes_for_log_probabilities():
    model = net(nn.Softmax(1))
    loss = lambda out, wanted: kl_div(out, wanted, reduction="batchmean")  # noqa: E731
    told = numbers("its input is between # and #", evidence_of("loss_input", model, loss, torch.full((16, 3), 1 / 3)))
    assert told == ends(outputs_of(model))


def test_the_range_of_targets_that_a_sigmoid_cannot_reach():
    evidence = evidence_of("output_range", net(nn.Sigmoid(), outputs=1), mse_loss, REAL)
    low, high, outside, count = numbers("are between # and #, so # of # cannot be reached", evidence)
    exact = REAL.double()
    assert [low, high] == ends(exact)
    assert numbers("outputs values from # to #, but", evidence) == [0, 1]
    assert (outside, count) == (((exact < 0) | (exact > 1)).sum(), 16)


@pytest.mark.parametrize(
    ("last", "side", "is_outside"), [(nn.ReLU, "least", torch.lt), (nn.LogSigmoid, "most", torch.gt)]
)
def test_the_targets_that_a_function_with_one_end_cannot_reach(last, side, is_outside):
    evidence = evidence_of("output_range", net(last(), outputs=1), mse_loss, REAL)
    (end,) = numbers(f"outputs values of at {side} #, but the targets", evidence)
    low, high, outside, count = numbers("are between # and #, so # of # cannot", evidence)
    assert (end, [low, high]) == (0, ends(REAL.double()))
    assert (outside, count) == (is_outside(REAL, 0).sum(), 16)


def test_the_targets_that_a_relu_cannot_reach():
    evidence = evidence_of("output_range", net(nn.ReLU(), outputs=1), mse_loss, REAL)
    (least,) = numbers("outputs values of at least #, but the targets", evidence)
    low, high, outside, count = numbers("are between # and #, so # of # cannot", evidence)
    assert (least, [low, high]) == (0, ends(REAL.double()))
    assert (outside, count) == ((REAL < 0).sum(), 16)


def test_the_targets_above_the_most_that_a_logarithm_gives():
    evidence = evidence_of("output_range", net(nn.LogSigmoid(), outputs=1), mse_loss, REAL)
    (most,) = numbers("outputs values of at most #, but the targets", evidence)
    outside, count = numbers(", so # of # cannot be reached", evidence)
    assert (most, outside, count) == (0, (REAL > 0).sum(), 16)


def test_the_range_of_targets_of_a_binary_loss():
    wanted = 3 * REAL + 0.5
    evidence = evidence_of("targets", net(outputs=1), binary_cross_entropy_with_logits, wanted)
    assert numbers("they range from # to #, so its loss has no lower bound", evidence) == ends(wanted.double(), 6)


def test_how_low_the_loss_of_a_softmax_can_get():
    evidence = evidence_of("loss_input", net(nn.Softmax(1)), cross_entropy, CLASSES)
    told = numbers("with # logits from # to #, the loss of a sample cannot fall below #", evidence)
    least = cross_entropy(torch.eye(3, dtype=torch.float64), torch.arange(3))  # the best that a softmax can give
    assert told == [3, 0, 1, float(f"{least:.3g}")]


def test_the_sums_of_targets_that_a_softmax_cannot_reach():
    wanted = torch.rand(16, 3, generator=torch.Generator().manual_seed(0)) * 0.5 + 0.5
    wanted[:4] = torch.eye(3)[CLASSES[:4]]
    evidence = evidence_of("output_range", net(nn.Softmax(1)), mse_loss, wanted)
    pattern = "to between # and # per sample, so those of # of # samples cannot be reached"
    low, high, outside, count = numbers(pattern, evidence)
    assert ([low, high], outside, count) == (ends(wanted.double().sum(1)), 12, 16)


def test_the_class_that_all_targets_are_and_the_number_of_classes():
    wanted = torch.full((16,), 2)
    evidence = evidence_of("targets", net(), cross_entropy, wanted)
    told = numbers("all # targets of the batch at", evidence) + numbers("are #, one of # classes", evidence)
    assert told == [16, 2, 3]


def test_the_shapes_that_broadcast():
    evidence = evidence_of("loss_shape", net(outputs=1), lambda out, y: ((out - y) ** 2).mean(), REAL[:, 0])
    both = torch.broadcast_shapes((16, 1), (16,))
    assert re.findall(r"\[[\d, ]+\]", evidence) == ["[16, 1]", "[16]", str(list(both))]


# Experiments


def tried(severity, model, batch, rate):
    """What is said of a model that does not learn, which is all that is said."""
    setting = Setting(model, [SGD(model.parameters(), lr=rate)], lambda batch: mse_loss(model(batch[0]), batch[1]))
    (found,) = experiment(setting, batch, 60).findings
    assert (found.rule, found.severity) == ("cannot_learn", severity)
    return found.evidence


def test_the_loss_whose_gradients_are_all_0():
    model = net(nn.Softmax(1), outputs=1)
    evidence = tried("alarm", model, (X, REAL), 0.1)
    told = numbers("no nonzero gradient reaches any of the # parameters in the optimizer (loss: #)", evidence)
    assert told == [2, float(f"{mse_loss(outputs_of(model), REAL.double()):.3g}")]


def test_the_first_and_last_loss_where_it_does_not_fall():
    model = net(nn.Sigmoid(), outputs=1)
    batch = X, REAL + 100
    evidence = tried("note", model, batch, 0.1)
    told = "at your learning rate (#), the loss on one batch goes from # to # within # steps"
    rate, first, last, steps = numbers(told, evidence)
    exact = losses_of_descent(net(nn.Sigmoid(), outputs=1), batch, 0.1, 120)
    assert (rate, steps) == (0.1, 120)
    assert (first, last) == (float(f"{exact[0]:.3g}"), float(f"{np.mean(exact[-5:]):.3g}"))


def test_the_loss_to_which_it_rises():
    evidence = tried("note", net(outputs=1), (X, REAL), 0.5)
    first, last, steps = numbers("the loss on one batch goes from # to # within # steps", evidence)
    exact = losses_of_descent(net(outputs=1), (X, REAL), 0.5, int(steps))
    assert (first, last) == pytest.approx((exact[0], np.mean(exact[-5:])), rel=0.01)
    assert last > 10 * first


def test_the_loss_from_which_it_diverges():
    model = net(outputs=1)
    batch = 1e8 * X, REAL
    evidence = tried("alarm", model, batch, 1.0)
    (first,) = numbers("(it starts at #)", evidence)
    exact = model.double()(batch[0].double())
    assert first == float(f"{mse_loss(exact, REAL.double()):.3g}")
    assert "diverges within" in evidence
