"""What a comparison shows at a prompt."""

import copy

import pytest
import torch
from torch import nn

from hookboard import compare


def test_a_prompt_shows_a_comparison_in_words():
    net = nn.Sequential(nn.Linear(2, 2))
    found = compare(net, copy.deepcopy(net), torch.ones(1, 2))
    assert repr(found) == str(found) == "Equal up to rounding: 4 tensors of 2 modules were compared."


def test_without_inputs_it_is_said_what_is_missing_before_a_model_runs():
    net = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"inputs= is missing: .* compare\(left, right, batch\)"):
        compare(net, copy.deepcopy(net))
