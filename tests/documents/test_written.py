"""What there is stands in the documents by its name, and what `python -m benchmarks.document` writes is true."""

import ast
import inspect
import re

import pytest
from benchmarks.document import ROOT, missing_exports, written
from documents.pages import prose, rows

import hookboard
from hookboard.base.messages import explained
from hookboard.capturing.methods import METHODS
from hookboard.health.arrays import QUANTITIES
from hookboard.tracing.questions import RULES, STEP
from hookboard.writers.loggers import KINDS


def test_every_health_rule_is_explained():
    sections = re.findall(r"^### `(\w+)`$", prose("docs/rules.md"), re.MULTILINE)
    assert {*sections} == {*RULES}, "src/hookboard/base/rules.md describes each rule, in a section of its own"
    assert len(sections) == len(RULES)


def test_a_rule_says_which_verdicts_it_gives_and_where_they_are_seen():
    for rule in RULES.values():
        shown = f"; see the chart `{rule.look_at}`" if rule.look_at else ""
        assert explained(rule.name)["Reported as"] == f"{rule.gives}{shown}."


def test_every_argument_of_a_function_is_in_its_docstring():
    for function in filter(inspect.isfunction, (getattr(hookboard, name) for name in hookboard.__all__)):
        described = {*re.findall(r"^    (\w+): ", inspect.getdoc(function), re.MULTILINE)}
        assert {*inspect.signature(function).parameters} <= described, function


def named_first(page: str) -> set[str]:
    """What stands as code in the first column of the tables of a page."""
    return {name for row in rows(page) for name in re.findall(r"`([^`]*)`", row[0])}


def test_every_logger_method_and_quantity_that_there_is_has_its_row_or_its_name():
    assert KINDS.keys() - {"_TemporaryLogger"} <= named_first("docs/loggers.md")
    assert {*QUANTITIES} <= named_first("docs/inside.md")
    assert [method for method in METHODS if f"`{method}`" not in prose("docs/pictures.md")] == []


HOW = "python -m benchmarks.document writes it anew"


@pytest.mark.parametrize("path", written())
def test_what_is_written_of_the_source_is_what_it_says(path):
    assert (ROOT / path).read_text() == written()[path], HOW


def test_everything_public_is_exported():
    assert missing_exports() == {}, HOW


def rules_that_reach(tree):
    """The function at the top of a file -> the rules about the step whose judge it is, or that call it."""
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    reached = {name: set() for name in functions}

    def reach(name, rule):
        if name in functions and rule not in reached[name]:
            reached[name].add(rule)
            for node in ast.walk(functions[name]):
                reach(getattr(node, "id", ""), rule)

    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Rule":
            reach(getattr(node.args[1], "id", ""), node.args[0].value)
    return reached


def severities_of_findings():
    """What the code of each rule of the step gives: name to the constants in place of its severity."""
    found = {}
    for path in (ROOT / "src" / "hookboard" / "tracing").glob("*.py"):
        tree = ast.parse(path.read_text())
        rules = rules_that_reach(tree)
        for top in tree.body:
            for node in ast.walk(top):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding":
                    named = [keyword.value.value for keyword in node.keywords if keyword.arg == "rule"]
                    severity = node.args[3] if len(node.args) > 3 else ast.Constant("note")
                    constants = {each.value for each in ast.walk(severity) if isinstance(each, ast.Constant)}
                    for name in named or rules[top.name]:
                        found.setdefault(name, set()).update(constants & {"alarm", "note"})
    return found


def test_a_rule_of_the_step_gives_what_the_page_says():
    said = {name: {*RULES[name].gives.split(" or ")} for name in STEP}
    found = severities_of_findings()
    for name in ("experts",):  # which judge looks too
        assert said.pop(name) >= found.pop(name, set())
    assert found == said
