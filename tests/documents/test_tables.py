"""What there is stands in the tables of the documents, by its name."""

import inspect
import re

import pytest
from documents.pages import PAGES, named_first, prose

import hookboard
from hookboard import callbacks
from hookboard.callbacks.parameter import FURTHER
from hookboard.callbacks.pictures import PictureLogger
from hookboard.capturing import METHODS, EditRule
from hookboard.health.run_table import QUANTITIES
from hookboard.measure import DERIVED, FORMULAS
from hookboard.model.sites import ROLES
from hookboard.tracing import RULES
from hookboard.writers.registry import write


def test_every_statistic_has_its_formula():
    assert named_first("docs/statistics.md") == {*FORMULAS, *DERIVED, *FURTHER}


def test_every_health_rule_is_explained():
    sections = re.findall(r"^### `(\w+)`$", prose("docs/rules.md"), re.MULTILINE)
    assert {*sections} == {*RULES}
    assert len(sections) == len(RULES)
    assert [name for name, rule in RULES.items() if not rule.about] == []


def test_every_rule_is_in_the_index_at_the_top_of_their_page():
    top = PAGES["docs/rules.md"].partition("\n## ")[0]
    assert sorted(re.findall(r"\[`(\w+)`\]\(#\1\)", top)) == sorted(RULES)


def test_every_option_of_the_monitor_is_explained():
    assert {*inspect.signature(hookboard.HealthMonitor).parameters} <= named_first("docs/health.md")


def test_every_option_of_capture_is_explained():
    found = {*inspect.signature(hookboard.capture).parameters} - {"model", "modules", "types"}
    assert found <= named_first("docs/capture.md")


def test_every_callback_is_explained():
    assert {*callbacks.__all__} <= named_first("docs/layers.md")


def test_every_callback_that_shows_pictures_is_among_the_pictures():
    found = {name for name in callbacks.__all__ if is_of_pictures(getattr(callbacks, name))}
    assert found - named_first("docs/pictures.md") == set()


def test_every_callback_that_shows_pictures_has_its_tag():
    kinds = {f"{each.kind}/…" for each in vars(callbacks).values() if is_of_pictures(each) and each.kind}
    assert kinds - named_first("docs/loggers.md") == set()


def is_of_pictures(public):
    return inspect.isclass(public) and issubclass(public, PictureLogger)


def test_every_logger_that_is_written_to_has_its_row():
    assert {kind.__name__ for kind in write.registry} - {"object"} - named_first("docs/loggers.md") == set()


def test_every_rule_that_changes_tensors_is_explained():
    rules = {name for name in hookboard.api.__all__ if is_edit_rule(getattr(hookboard, name))}
    assert rules <= {name.partition("(")[0] for name in named_first("docs/capture.md")}


def is_edit_rule(public):
    return inspect.isclass(public) and issubclass(public, EditRule)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_of_class_activation_maps_is_named(method):
    assert f"`{method}`" in prose("docs/pictures.md")


@pytest.mark.parametrize("role", ROLES)
def test_every_role_has_its_tag(role):
    assert any(name.startswith(f"{ROLES[role].kind}_") for name in named_first("docs/loggers.md"))


def test_every_quantity_of_the_record_is_explained():
    assert {*QUANTITIES} <= named_first("docs/inside.md")
