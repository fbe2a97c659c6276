"""The docstrings are LightningCLI's help: every argument is there, and equal arguments are explained in equal words."""

import inspect
import re
from collections import defaultdict

import pytest

import hookboard
from hookboard import callbacks
from hookboard.callbacks.parameter import FURTHER
from hookboard.measure import DERIVED, FORMULAS

CALLBACKS = callbacks.__all__

OWN = re.compile(r" (Left out|Here)\b.*")
"""Where the words that all callbacks share end, and those about one callback begin."""


def documented(name):
    """Argument to its description, in one line each."""
    args = re.search(r"Args:\n(.*?)\n\n", inspect.getdoc(getattr(hookboard, name)), re.DOTALL)[1]
    entries = re.findall(r"^    (\w+): (.*(?:\n        .*)*)", args, re.MULTILINE)
    return {argument: " ".join(text.split()) for argument, text in entries}


@pytest.mark.parametrize("name", CALLBACKS)
def test_every_argument_is_documented_in_the_order_of_the_signature(name):
    parameters = inspect.signature(getattr(hookboard, name)).parameters
    assert list(documented(name)) == list(parameters)


def test_equal_arguments_have_equal_words():
    found = defaultdict(set)
    for name in CALLBACKS:
        for argument, text in documented(name).items():
            found[argument].add(OWN.sub("", text))
    assert {argument: texts for argument, texts in found.items() if len(texts) > 1} == {}


@pytest.mark.parametrize("name", CALLBACKS)
def test_what_raises_and_an_example_are_documented(name):
    text = inspect.getdoc(getattr(hookboard, name))
    assert "Raises:\n" in text
    assert "Example:\n    >>> " in text


@pytest.mark.parametrize("name", ["ActivationLogger", "GradientLogger", "ParameterLogger"])
def test_every_statistic_is_in_the_docstrings(name):
    words = {*re.findall(r"\w+", documented(name)["statistics"])}
    own = FURTHER if name == "ParameterLogger" else ()
    assert {*FORMULAS, *DERIVED, *own} - words == set()
