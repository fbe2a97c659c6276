from typing import get_args

import pytest
import torch

from hookboard.capturing import METHODS, Method


def test_the_type_of_the_argument_names_every_method():
    assert get_args(Method) == tuple(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_gives_one_map_for_each_sample(name):
    method = METHODS[name]
    a = torch.rand(2, 3, 4, 5)
    second = {"gradient": [torch.randn(2, 3, 4, 5)], "head": [torch.randn(2, 3)], "nothing": []}[method.needs]
    assert method.map(a, *second).shape == (2, 4, 5)
