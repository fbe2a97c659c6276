"""What `python -m benchmarks.document` writes is what the source says."""

import ast

import pytest
from benchmarks.document import ROOT, missing_exports, written

from hookboard.health import RULES, STEP

HOW = "python -m benchmarks.document writes it anew"


@pytest.mark.parametrize("path", written())
def test_what_is_written_of_the_source_is_what_it_says(path):
    assert (ROOT / path).read_text() == written()[path], HOW


def test_everything_public_is_exported():
    assert missing_exports() == {}, HOW


def severities_of_findings():
    """What the code of each rule of the step gives: name to the constants in place of its severity."""
    found = {}
    for path in (ROOT / "src" / "hookboard" / "auditing").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding":
                name, severity = node.args[:2]
                constants = {each.value for each in ast.walk(severity) if isinstance(each, ast.Constant)}
                found.setdefault(name.value, set()).update(constants & {"alarm", "note"})
    return found


def test_a_rule_of_the_step_gives_what_the_page_says():
    said = {name: {*RULES[name].gives.split(" or ")} for name in STEP}
    found = severities_of_findings()
    assert found.pop("input_scale") == {"note"}  # a rule that judges looks, and the step where the model holds the data
    assert found == said
