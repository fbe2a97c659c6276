"""The script that follows advice: each kind of advice changes a program as its words say, or is left to a person."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  # the usual name

pytest.importorskip("sklearn")

from benchmarks.programs.parts import accuracy, bit_accuracy, r2, sgd, stack
from benchmarks.programs.repair import followed, is_repaired
from benchmarks.programs.trial import Program


def program(*parts, loss=F.mse_loss, targets=None, score=r2):
    inputs = torch.arange(6.0).reshape(3, 2) * 100
    targets = torch.tensor([[10.0], [20.0], [60.0]]) if targets is None else targets
    return Program(stack(2, *(parts or (1,))), loss, inputs, targets, sgd(0.5), 3, 4, score)


def rate(changed):
    return changed.optimizer(changed.net.parameters()).param_groups[0]["lr"]


@pytest.mark.parametrize(
    ("advice", "expected"),
    [
        ("Lower the learning rate, and check the sign of the loss.", 0.05),
        ("Raise the learning rate, and check whether gradients are clipped.", 5.0),
        ("set lr=3e-4", 3e-4),
        ("divide all rates by 30", 0.5 / 30),
        ("multiply all rates by 10", 5.0),
    ],
)
def test_a_rate_changes_by_the_number_of_the_advice_or_by_ten(advice, expected):
    done = followed(program(), advice, "")
    assert rate(done[1]) == pytest.approx(expected)


def test_of_several_things_the_first_is_done():
    words, changed = followed(program(), "Lower the learning rate or warm it up, and clip gradients.", "")
    assert words == "Lower the learning rate"
    assert changed.clip is None


def test_a_table_is_standardized_by_column():
    _, changed = followed(program(), "Scale the input: subtract its mean and divide by its standard deviation.", "")
    assert changed.inputs.mean(0).tolist() == pytest.approx([0, 0], abs=1e-6)
    assert changed.inputs.std(0, correction=0).tolist() == pytest.approx([1, 1])


def test_the_last_activation_is_removed_where_the_advice_names_it():
    _, changed = followed(program(1, "sigmoid"), "remove the sigmoid, or scale the targets into its range", "net.1")
    assert [type(layer) for layer in changed.net] == [nn.Linear]


def test_an_activation_that_is_not_there_is_not_removed_and_the_next_words_are_followed():
    words, changed = followed(program(1, "tanh"), "remove the sigmoid, or scale the targets into its range", "net.1")
    assert words == "scale the targets"
    assert isinstance(changed.net[-1], nn.Tanh)


def test_a_softmax_over_one_unit_becomes_a_sigmoid():
    _, changed = followed(program(1, "softmax"), "use sigmoid for one output, or give the model an output", "net.1")
    assert isinstance(changed.net[-1], nn.Sigmoid)


def test_more_classes_get_an_output_each():
    given = program(4, "relu", 1, targets=torch.tensor([[0.0], [1.0], [2.0]]), score=bit_accuracy)
    _, changed = followed(given, "encode two classes as 0 and 1; for more classes use cross_entropy", "")
    assert changed.net(changed.inputs).shape == (3, 3)
    assert changed.loss is F.cross_entropy
    assert changed.targets.tolist() == [0, 1, 2]
    assert changed.score is accuracy


def test_hidden_sigmoids_become_normalized_relus_and_the_last_stays():
    advice = "Use ReLU or GELU in place of Sigmoid with He initialization, and add normalization or shortcuts"
    _, changed = followed(program(4, "sigmoid", 1, "sigmoid"), advice, "")
    assert [type(layer) for layer in changed.net] == [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear, nn.Sigmoid]


def test_an_activation_that_an_alarm_names_becomes_a_relu_and_so_do_others_of_its_kind():
    advice = "Subtract the maximum first, or clamp its input; as an activation, use ReLU or GELU instead."
    given = program(4, "exponential", 4, "sigmoid", 4, "exponential", 1, "sigmoid")
    _, changed = followed(given, advice, "net.1")
    kinds = [type(layer) for layer in changed.net if not isinstance(layer, nn.Linear)]
    assert kinds == [nn.ReLU, nn.Sigmoid, nn.ReLU, nn.Sigmoid]


def test_weights_before_a_relu_get_the_deviation_of_he():
    given = program(4000, "relu", 1)
    nn.init.zeros_(given.net[0].weight)
    _, changed = followed(
        given, "use an initialization that suits the activation (He for ReLU), or add normalization.", ""
    )
    assert changed.net[0].weight.std().item() == pytest.approx(1, rel=0.05)  # the root of 2 / 2 inputs


def test_a_score_is_near_only_if_it_went_most_of_the_way():
    assert is_repaired(wrong=0.5, right=0.95, score=0.9)
    assert not is_repaired(wrong=0.5, right=0.95, score=0.8)
    assert not is_repaired(wrong=0.7, right=0.85, score=0.76)
    assert is_repaired(wrong=-math.inf, right=0.99, score=0.99)
