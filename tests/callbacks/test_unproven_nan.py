"""Of a NaN or Inf the graph may tell only what took it, or that it came of one of several: then no more is said."""

import math

import pytest
import torch
from boxes import only_event
from torch import nn
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    mse_loss,
    pad,
    scaled_dot_product_attention,
    smooth_l1_loss,
)
from torch.utils.checkpoint import checkpoint
from toys import Toy, batches


class Calls(nn.Module):
    """Calls a function with what its first layer gives, and whether the batch is the third one."""

    def __init__(self, function):
        super().__init__()
        self.function, self.first, self.last, self.calls = function, nn.Linear(4, 4), nn.Linear(4, 3), 0

    def forward(self, x):
        self.calls += 1
        return self.last(self.function(self.first(x).tanh(), self.calls == 3))


CLASSES = torch.arange(8) % 3


def evidence_of(function, loss=None):
    torch.manual_seed(0)
    return only_event(Toy(Calls(function), loss), batches(8, 8, 8, 8)).evidence


def opposites(x, bad):
    large = x * (1e30 if bad else 1.0) / (1e-30 if bad else 1.0)
    return large - large * (1.0 if bad else 0.5)


@pytest.mark.parametrize("name", ["tanh", "sigmoid", "relu", "exp"])
def test_a_function_that_makes_no_nan_has_taken_it(name):
    evidence = evidence_of(lambda x, bad: getattr(opposites(x, bad), name)())
    assert f"to receive a non-finite value was {name}() after 'net.first'" in evidence
    assert "the value was produced earlier, perhaps by mul(), div()" in evidence


PUTS_IN = {
    "masked_fill": lambda x: x.masked_fill(x > 0, math.nan),
    "index_fill": lambda x: x.index_fill(0, torch.tensor([0]), math.nan),
    "pad": lambda x: pad(x[:, 1:], (0, 1), value=math.nan),
    "remainder": lambda x: torch.remainder(x, 0.0),
}


@pytest.mark.parametrize("name", PUTS_IN)
def test_the_layer_before_a_call_that_puts_a_nan_in_has_not_made_it(name):
    evidence = evidence_of(lambda x, bad: PUTS_IN[name](x.atanh()) if bad else x)
    assert "came from linear()" not in evidence
    assert f"came from {name}()" in evidence or "the value was produced earlier" in evidence


def test_rows_of_nan_are_not_called_masked():
    evidence = evidence_of(lambda x, bad: opposites(x, bad).softmax(-1))
    assert "came from softmax() after 'net.first' (32 of 32 values are NaN), or from earlier code" in evidence
    assert "masked" not in evidence


@pytest.mark.parametrize("is_learned", [False, True])
def test_the_mask_of_attention_is_not_what_made_a_later_nan(is_learned):
    hidden = torch.ones(8, 8, dtype=torch.bool).triu(1)
    bias = torch.zeros(8, 8, requires_grad=is_learned)

    def attend_and_spoil(x, bad):
        mask = bias.masked_fill(hidden, -math.inf)
        attended = scaled_dot_product_attention(x[None, None], x[None, None], x[None, None], attn_mask=mask)[0, 0]
        return attended.square().neg().log() if bad else attended

    assert "came from log() after" in evidence_of(attend_and_spoil)


def test_what_comes_out_of_a_checkpoint_is_not_ascribed_to_what_takes_it():
    def inside(x, bad):
        return checkpoint(lambda y: (y * 0).log() * 0 if bad else y, x, use_reentrant=False)

    evidence = evidence_of(inside, lambda y: cross_entropy(y, CLASSES))
    assert "came from log()" in evidence


def test_what_comes_out_of_a_custom_function_is_not_ascribed_to_what_takes_it():
    class Spoils(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * math.nan

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    evidence = evidence_of(lambda x, bad: (Spoils.apply(x) if bad else x).sigmoid())
    assert "The module is unknown" in evidence


def test_targets_that_are_all_ignored_are_told():
    def loss(y):
        is_bad = bool((y > 1e3).any())
        return y.square().mean() * 1e-9 + cross_entropy(y, torch.full_like(CLASSES, -100) if is_bad else CLASSES)

    evidence = evidence_of(lambda x, bad: x * (1e6 if bad else 1.0), loss)
    assert "came from nll_loss() after 'net.last': all its targets are ignored" in evidence


LOSSES = [mse_loss, smooth_l1_loss, binary_cross_entropy_with_logits]


@pytest.mark.parametrize("mean", [torch.mean, *(lambda y, loss=loss: loss(y, torch.zeros_like(y)) for loss in LOSSES)])
def test_a_mean_of_nothing_is_told(mean):
    def loss(y):
        return mean(y.square()[(y.abs() < 1e3).all(1)])

    assert "it is the mean of an empty tensor" in evidence_of(lambda x, bad: x * (1e9 if bad else 1.0), loss)


def test_what_made_an_inf_is_not_what_has_passed_on_a_finite_value():
    def norm(x, bad):
        return nn.functional.layer_norm(x * (1e25 if bad else 1.0), (4,))

    assert "came from layer_norm()" in evidence_of(norm)


def test_what_is_masked_before_a_loss_that_leaves_it_out_is_not_what_made_a_later_nan():
    def loss(y):
        is_bad = bool((y > 1e3).any())
        likelihood = cross_entropy(y.masked_fill(torch.tensor([False, False, True]), -math.inf), CLASSES % 2)
        return likelihood + (y.square() * (0 if is_bad else 1)).log().mean() * 1e-9

    assert "came from log()" in evidence_of(lambda x, bad: x * (1e6 if bad else 1.0), loss)


def test_of_two_calls_that_both_made_one_none_is_taken_for_the_first():
    def loss(y):
        variance = y[:, 0].square() * (0 if bool((y > 1e3).any()) else 1)
        return (variance.log() + y[:, 1].square() / variance).mean()

    evidence = evidence_of(lambda x, bad: x * (1e6 if bad else 1.0), loss)
    assert "is nan. It may come from log(), div()." in evidence
