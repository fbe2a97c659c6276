"""Marks a test that calls torch.compile, where torch itself warns of what it uses."""

import pytest


def compiles(test):
    ignored = "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:The .grad attribute:UserWarning"
    return pytest.mark.compiles(pytest.mark.filterwarnings(*ignored)(test))
