from typing import get_args

from hookboard.capturing.methods import METHODS, Method


def test_the_type_of_the_argument_names_every_method():
    assert get_args(Method) == tuple(METHODS)
