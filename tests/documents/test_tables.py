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


def test_every_option_of_the_monitor_is_explained():
    assert {*inspect.signature(hookboard.HealthMonitor).parameters} <= named_first("docs/health.md")


def test_every_option_of_capture_is_explained():
    found = {*inspect.signature(hookboard.capture).parameters} - {"model", "modules", "types"}
    assert found <= named_first("docs/capture.md")


def test_every_logger_that_is_written_to_has_its_row():
    assert KINDS.keys() - {"_TemporaryLogger"} <= named_first("docs/loggers.md")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_of_class_activation_maps_is_named(method):
    assert f"`{method}`" in prose("docs/pictures.md")


def test_every_quantity_of_the_record_is_explained():
    assert {*QUANTITIES} <= named_first("docs/inside.md")
