"""What a comparison shows at a prompt and in a notebook."""

import copy
import re

import pytest
import torch
from comparing.nets import INPUTS, Transformer, model, planted
from torch import nn

from hookboard import compare


def rows_of(found):
    """The table's rows, without the header."""
    return re.findall("<tr>.*?</tr>", found._repr_html_())[1:]


def test_each_module_has_one_bar_and_that_of_a_difference_is_red():
    net = model(Transformer)
    found = compare(net, planted(net, lambda n: setattr(n.blocks[1].norm1, "eps", 1e-2)), INPUTS[Transformer])
    rows = rows_of(found)
    assert len(rows) == len({row.spot.module for row in found.rows})
    [red] = [row for row in rows if "#d62728" in row]
    assert "blocks.1.norm1" in red
    assert f"relative difference {found.first.found.relative:.2g}" in red


def test_a_difference_that_is_infinite_has_a_full_bar():
    net = nn.Sequential(nn.Linear(2, 2))
    found = compare(net, planted(net, lambda n: n[0].bias.fill_(torch.nan)), torch.ones(1, 2))
    assert any("width:100%" in row for row in rows_of(found))


def test_of_many_modules_those_that_differ_are_shown():
    net = nn.Sequential(*(nn.Linear(2, 2) for _ in range(150)))
    other = copy.deepcopy(net)
    other[140].weight.data[0] += 1
    rows = rows_of(compare(net, other, torch.ones(1, 2)))
    assert len(rows) == 100
    assert sum("#d62728" in row for row in rows) == 1


def test_a_prompt_shows_a_comparison_in_words():
    net = nn.Sequential(nn.Linear(2, 2))
    found = compare(net, copy.deepcopy(net), torch.ones(1, 2))
    assert repr(found) == str(found) == "Equal up to rounding: 4 tensors of 2 modules were compared."


def test_without_inputs_it_is_said_what_is_missing_before_a_model_runs():
    net = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"inputs= is missing: .* compare\(left, right, batch\)"):
        compare(net, copy.deepcopy(net))
