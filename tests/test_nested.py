from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from hookboard.nested import tensors_in

X = torch.zeros(1)
Point = namedtuple("Point", "x y")


@dataclass
class Output:
    logits: Tensor
    loss: Tensor | None = None


@pytest.mark.parametrize(
    ("value", "paths"),
    [
        (X, [""]),
        ((X, X), ["0", "1"]),
        ([X, None, X], ["0", "2"]),
        ({"a": X, "b": (X, X)}, ["a", "b/0", "b/1"]),
        (OrderedDict(last=X), ["last"]),
        (Point(X, X), ["x", "y"]),
        (Output(X), ["logits"]),
        (Output, []),
        (None, []),
        ("text", []),
        (3.0, []),
    ],
)
def test_tensors_are_found_under_their_index_or_key(value, paths):
    assert [path for path, _ in tensors_in(value)] == paths


def test_an_lstm_has_three_outputs():
    output = nn.LSTM(2, 3)(torch.zeros(4, 1, 2))
    assert [path for path, _ in tensors_in(output)] == ["0", "1/0", "1/1"]
