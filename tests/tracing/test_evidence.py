"""The numbers of what a step's rules and the experiments say, each against float64 over the raw tensors."""

import math
import re

import numpy as np
import pytest
import torch
from oracle import fall_of, losses_of_descent
from recorded import numbers
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, kl_div, mse_loss, nll_loss
from torch.optim import SGD

from hookboard.experiments.attempt import Setting
from hookboard.experiments.experiment import experiment
from hookboard.tracing.audit import audit

pytestmark = pytest.mark.unit

torch.manual_seed(0)
X = torch.randn(16, 4)
CLASSES = torch.arange(16) % 3
REAL = torch.linspace(-2, 2, 16).unsqueeze(1)


def net(*tail, outputs=3):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, outputs), *tail)


def evidence_of(rule, model, loss, target):
    (found,) = (
        one for one in audit(model, (X, target), lambda batch: loss(model(batch[0]), batch[1])) if one.rule == rule
    )
    return found.evidence


class Probabilities(nn.Module):
    """Gives probabilities that no softmax made."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        size = self.linear.to(x.dtype)(x).abs()
        return size / size.sum(1, keepdim=True)


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


def test_the_targets_that_a_relu_cannot_reach():
    evidence = evidence_of("output_range", net(nn.ReLU(), outputs=1), mse_loss, REAL)
    (least,) = numbers("outputs values of at least #, but the targets", evidence)
    low, high, outside, count = numbers("are between # and #, so # of # cannot", evidence)
    assert (least, [low, high]) == (0, ends(REAL.double()))
    assert (outside, count) == ((REAL < 0).sum(), 16)


def test_the_range_of_targets_of_a_binary_loss():
    wanted = 3 * REAL + 0.5
    evidence = evidence_of("targets", net(outputs=1), binary_cross_entropy_with_logits, wanted)
    assert numbers("they range from # to #, so its loss has no lower bound", evidence) == ends(wanted.double(), 6)


def test_the_rows_of_probabilities_that_are_given_to_cross_entropy_and_their_range():
    model = Probabilities()
    evidence = evidence_of("loss_input", model, cross_entropy, CLASSES)
    rows, low, high = numbers("each of the # rows of its input sums to 1, with values between # and #", evidence)
    exact = model(X.double())
    assert (rows, [low, high]) == (16, ends(exact))


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


def test_the_targets_above_the_most_that_a_logarithm_gives():
    evidence = evidence_of("output_range", net(nn.LogSigmoid(), outputs=1), mse_loss, REAL)
    (most,) = numbers("outputs values of at most #, but the targets", evidence)
    outside, count = numbers(", so # of # cannot be reached", evidence)
    assert (most, outside, count) == (0, (REAL > 0).sum(), 16)


def test_the_range_of_targets_that_are_far_from_scaled():
    wanted = 200 + 75 * REAL
    evidence = evidence_of("targets", net(outputs=1), mse_loss, wanted)
    assert numbers("are between # and #, with a mean", evidence) == ends(wanted)


def test_the_class_that_all_targets_are_and_the_number_of_classes():
    wanted = torch.full((16,), 2)
    told = numbers("all # targets of the batch at", evidence_of("targets", net(), cross_entropy, wanted))
    value, classes = numbers("are #, one of # classes", evidence_of("targets", net(), cross_entropy, wanted))
    assert (*told, value, classes) == (16, 2, 3)


def test_the_shapes_that_broadcast():
    evidence = evidence_of("loss_shape", net(outputs=1), lambda out, y: ((out - y) ** 2).mean(), REAL[:, 0])
    both = torch.broadcast_shapes((16, 1), (16,))
    assert re.findall(r"\[[\d, ]+\]", evidence) == ["[16, 1]", "[16]", str(list(both))]


# Experiments


def tried(rule, model, batch, rate):
    setting = Setting(model, [SGD(model.parameters(), lr=rate)], lambda batch: mse_loss(model(batch[0]), batch[1]))
    return next(one.evidence for one in experiment(setting, [batch], 60).findings if one.rule == rule)


def test_the_loss_whose_gradients_are_all_0():
    model = net(nn.Softmax(1), outputs=1)
    evidence = tried("cannot_learn", model, (X, REAL), 0.1)
    told = numbers("no nonzero gradient reaches any of the # parameters in the optimizer (loss: #)", evidence)
    assert told == [2, float(f"{mse_loss(outputs_of(model), REAL.double()):.3g}")]


def test_the_loss_that_falls_at_no_rate_and_how_far_it_falls_at_most():
    model = net(nn.Sigmoid(), outputs=1)
    batch = X, REAL + 100
    evidence = tried("cannot_learn", model, batch, 0.1)
    most, steps, first, rates, lowest, highest = numbers(
        "the loss on the same samples falls by at most #% in # steps (from #), at any of # rates from # to #",
        evidence,
    )
    assert (rates, lowest, highest, steps) == (7, 1e-4, 100, 30)
    exact = [losses_of_descent(net(nn.Sigmoid(), outputs=1), batch, 1e-4 * 10**power, 30) for power in range(7)]
    losses, falls = exact[0], list(map(fall_of, exact))
    assert first == float(f"{losses[0]:.3g}")
    assert most == round(100 * max(*falls, 0), 1)
    # The best rate is tried once more, for four times as many steps.
    assert numbers("; # steps at # do not help", evidence) == [120, 1e-4 * 10 ** np.argmax(falls)]


def test_how_far_the_loss_falls_in_more_steps_where_it_falls_at_no_rate():
    batch = 20 * (X - X.mean(0)), REAL + 10  # the bias alone can learn the 10, and the weights forbid a higher rate

    def make():
        model = net(outputs=1)
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
        return model

    evidence = tried("cannot_learn", make(), batch, 2e-4)
    rate, share, steps = numbers("; at # it falls by #% in # steps", evidence)
    assert share == round(100 * fall_of(losses_of_descent(make(), batch, rate, int(steps))))


def test_how_far_the_loss_falls_where_all_outputs_become_the_same():
    batch = X, X[:, :1] + 3

    def make():
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))  # all units die at this rate

    evidence = tried("learning_rate", make(), batch, 0.5)
    steps, yours, share = numbers(
        "in # steps; at yours (#) it falls by #%, and the outputs are the same for every sample", evidence
    )
    model = make()
    assert (yours, share) == (0.5, round(100 * fall_of(losses_of_descent(model, batch, 0.5, int(steps)))))
    assert model(X.double()).std() < 1e-9


def test_how_far_the_loss_falls_at_a_higher_rate_and_at_yours():
    batch = X, REAL
    evidence = tried("learning_rate", net(outputs=1), batch, 1e-4)
    better, falls, steps, rate, yours = numbers(
        "at a rate of # the loss falls by #% in # steps; at yours (#) it falls by #%", evidence
    )
    assert rate == 1e-4
    assert falls == round(100 * fall_of(losses_of_descent(net(outputs=1), batch, better, int(steps))))
    assert yours == round(100 * fall_of(losses_of_descent(net(outputs=1), batch, rate, int(steps))))


def test_every_rate_diverges_from_the_loss_of_the_batch():
    model = net(outputs=1)
    batch = 1e8 * X, REAL
    evidence = tried("learning_rate", model, batch, 1.0)
    lowest, first = numbers("at every learning rate down to #, the loss diverges (it starts at #)", evidence)
    exact = model.double()(batch[0].double())
    assert lowest == 1e-3
    assert first == float(f"{mse_loss(exact, REAL.double()):.3g}")
    assert math.isfinite(first)
