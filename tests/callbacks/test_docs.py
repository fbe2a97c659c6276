"""The docstrings are LightningCLI's help: every argument is there, and equal arguments are explained in equal words."""

import inspect
import re
from collections import defaultdict
from pathlib import Path

import pytest
from toys import CALLBACKS

import hookboard
from hookboard.callbacks.numbers import UPDATES
from hookboard.callbacks.pictures import PictureLogger
from hookboard.measure.statistics import DERIVED, FORMULAS
from hookboard.model.sites import ROLES, Site

OWN = re.compile(r" (Default|Here)\b.*")
"""Where the words that all callbacks share end, and those about one callback begin."""


def documented(name):
    """Argument to its description, in one line each."""
    args = re.search(r"Args:\n(.*?)\n\n", inspect.getdoc(getattr(hookboard, name)), re.DOTALL)[1]
    entries = re.findall(r"^    (\w+): (.*(?:\n        .*)*)", args, re.MULTILINE)
    return {argument: " ".join(text.split()) for argument, text in entries}


@pytest.mark.parametrize("name", CALLBACKS)
def test_every_argument_in_order_what_raises_and_an_example_are_documented(name):
    parameters = inspect.signature(getattr(hookboard, name)).parameters
    assert list(documented(name)) == list(parameters)
    text = inspect.getdoc(getattr(hookboard, name))
    assert "Raises:\n" in text
    assert "Examples:\n    >>> " in text


def test_equal_arguments_have_equal_words():
    found = defaultdict(set)
    for name in CALLBACKS:
        for argument, text in documented(name).items():
            found[argument].add(OWN.sub("", text))
    assert {argument: texts for argument, texts in found.items() if len(texts) > 1} == {}


@pytest.mark.parametrize("name", ["ActivationLogger", "GradientLogger", "ParameterLogger"])
def test_every_statistic_is_in_the_docstrings(name):
    words = {*re.findall(r"\w+", documented(name)["statistics"])}
    own = UPDATES if name == "ParameterLogger" else ()
    assert {*FORMULAS, *DERIVED, *own} - words == set()


def test_every_kind_of_tag_is_on_the_page_of_loggers():
    logged = [role for role, traits in ROLES.items() if traits.kind]
    kinds = {f"{ROLES[role].kind}_" for role in logged}
    kinds |= {Site("", role).histogram_tag().removesuffix("model") for role in logged}
    of_pictures = [each for name in CALLBACKS if issubclass(each := getattr(hookboard, name), PictureLogger)]
    kinds |= {f"{each.kind}/" for each in of_pictures if each.kind}
    page = (Path(__file__).parents[2] / "docs" / "loggers.md").read_text()
    assert [kind for kind in sorted(kinds) if f"`{kind}" not in page] == []
