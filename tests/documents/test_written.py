"""What `python -m benchmarks.document` writes is what the source says."""

import ast

import pytest
from benchmarks.document import ROOT, missing_exports, written

from hookboard.tracing.questions import RULES, STEP

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
