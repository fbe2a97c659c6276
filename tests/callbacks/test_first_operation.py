"""The call that made the first NaN or Inf is named with its line, and what was wrong with its input."""

import inspect
import math

import pytest
import torch
from boxes import Keeps, assert_undisturbed, only_event
from torch import nn
from torch.nn import functional as F  # noqa: N812  # the usual name
from toys import Toy, batches


def marked_at(index, count=4):
    data = batches(*[8] * count)
    data[index] = data[index] + 100
    return data


def masked_softmax(x, bad):
    mask = torch.zeros(8, 4, dtype=torch.bool)
    mask[:, 0], mask[:3] = True, bad
    return x.masked_fill(mask, -math.inf).softmax(-1)


def masked_function(x, bad):
    mask = torch.zeros(8, 4, dtype=torch.bool)
    mask[:, 0], mask[:3] = True, bad
    return F.softmax(x.masked_fill(mask, -math.inf), dim=1)


ATTENTION = nn.MultiheadAttention(4, 1, batch_first=True)


def masked_attention(x, bad):
    hidden = torch.zeros(8, 1, dtype=torch.bool)
    hidden[:3] = bad
    return ATTENTION(x[:, None], x[:, None], x[:, None], key_padding_mask=hidden)[0][:, 0]


def divided(x, bad):
    return x / torch.tensor([1.0, 0.0, 2.0, 0.0] if bad else [1.0] * 4)


def logarithm(x, bad):
    return torch.log(torch.where(torch.arange(4) < 2, x.abs() + 1, torch.tensor(0.0 if bad else 1.0)))


def root(x, bad):
    y = x.abs() + 1
    y[0, 0] = -1.0 if bad else 1.0
    return torch.sqrt(y)


def exponential(x, bad):
    return torch.exp(x * 0 + (200.0 if bad else 0.0))


def in_place(x, bad):
    return (x * 1).div_(0.0 if bad else 1.0)


def healed_before(x, bad):
    """What was made and replaced before is not what spoiled the loss."""
    return torch.nan_to_num(x / torch.zeros(4)) * 0 + divided(x, bad)


class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x, bool((x > 50).any()))


CASES = [
    (masked_softmax, "softmax", "3 rows are masked throughout", "Let each row see"),
    (masked_function, "softmax", "3 rows are masked throughout", "Let each row see"),
    (masked_attention, "multi_head_attention_forward", "3 rows are masked throughout", "Let each row see"),
    (divided, "div", "2 of its divisors are 0", "Add an epsilon"),
    (logarithm, "log", "16 of its 32 inputs are 0 or less", "Clamp its input"),
    (root, "sqrt", "1 of its 32 inputs is 0 or less", "Clamp its input"),
    (exponential, "exp", "its input goes up to 200", "Subtract the maximum first"),
    (in_place, "div", "1 of its divisors is 0", "Add an epsilon"),
]


def last_line(function):
    lines, start = inspect.getsourcelines(function)
    return f"test_first_operation.py:{start + len(lines) - 1}"


@pytest.mark.parametrize(("function", "name", "why", "advice"), CASES, ids=[case[0].__name__ for case in CASES])
def test_the_call_is_named_with_its_line_and_what_went_in(function, name, why, advice):
    event = only_event(Toy(nn.Sequential(nn.Identity(), Calls(function), nn.Linear(4, 3))), marked_at(2))
    assert (event.module, event.step) == ("net.1", 2)
    assert f"came from {name}() at {last_line(function)}: {why}." in event.evidence
    assert event.advice.startswith(advice)


def test_a_value_that_was_replaced_is_not_what_spoiled_the_loss():
    event = only_event(Toy(nn.Sequential(Calls(healed_before), nn.Linear(4, 3))), marked_at(2))
    assert f"div() at {last_line(divided)}" in event.evidence


def test_a_division_by_a_tiny_number_is_not_called_one_by_0():
    net = nn.Sequential(Calls(lambda x, bad: x / (1e-37 if bad else 1)), nn.Linear(4, 3))
    event = only_event(Toy(net), marked_at(2))
    assert "came from div() at test_first_operation.py" in event.evidence
    assert "divisor" not in event.evidence + event.advice


def test_an_operation_without_a_known_cause_leaves_the_advice_as_it_is():
    net = nn.Sequential(Calls(lambda x, bad: x * 1e38 if bad else x), nn.Linear(4, 3))
    event = only_event(Toy(net), marked_at(2))
    assert "came from mul() at test_first_operation.py" in event.evidence
    assert "look for a division by 0" in event.advice


@pytest.mark.parametrize("function", [masked_softmax, in_place])
def test_the_search_for_the_call_changes_nothing(function):
    assert_undisturbed(lambda: Keeps(nn.Sequential(Calls(function), nn.Dropout(), nn.Linear(4, 3))), marked_at(2))
