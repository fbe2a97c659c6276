"""What there is stands in the tables of the documents, by its name."""

import inspect
import re

import pytest
from documents.pages import named_first, prose

import hookboard
from hookboard.base.messages import explained
from hookboard.capturing.methods import METHODS
from hookboard.health.arrays import QUANTITIES
from hookboard.tracing.questions import RULES
from hookboard.writers.loggers import KINDS


def test_every_health_rule_is_explained():
    sections = re.findall(r"^### `(\w+)`$", prose("docs/rules.md"), re.MULTILINE)
    assert {*sections} == {*RULES}, "src/hookboard/base/rules.md describes each rule, in a section of its own"
    assert len(sections) == len(RULES)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_rule_says_which_verdicts_it_gives_and_where_they_are_seen(rule):
    shown = f"; see the chart `{rule.look_at}`" if rule.look_at else ""
    assert explained(rule.name)["Reported as"] == f"{rule.gives}{shown}."


@pytest.mark.parametrize("name", [name for name in hookboard.__all__ if inspect.isfunction(getattr(hookboard, name))])
def test_every_argument_of_a_function_is_in_its_docstring(name):
    """The pages name only the usual ones."""
    function = getattr(hookboard, name)
    described = {*re.findall(r"^    (\w+): ", inspect.getdoc(function), re.MULTILINE)}
    assert {*inspect.signature(function).parameters} <= described


def test_every_logger_that_is_written_to_has_its_row():
    assert KINDS.keys() - {"_TemporaryLogger"} <= named_first("docs/loggers.md")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_of_class_activation_maps_is_named(method):
    assert f"`{method}`" in prose("docs/pictures.md")


def test_every_quantity_of_the_record_is_explained():
    assert {*QUANTITIES} <= named_first("docs/inside.md")
