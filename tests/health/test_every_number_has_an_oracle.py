"""Every number that the evidence of a rule holds is compared with an oracle by a test."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

TESTS = Path(__file__).parents[1]
SOURCE = TESTS.parent / "src" / "hookboard"
SENTENCES = [
    *(SOURCE / "health" / "rules").glob("*.py"),
    # Of the first NaN, in explain.py, three numbers have no oracle yet.
    *(path for path in (SOURCE / "tracing").glob("*.py") if path.name != "explain.py"),
    SOURCE / "experiments" / "experiment.py",
    SOURCE / "health" / "losses.py",
]
ORACLES = [
    *TESTS.glob("**/test_*evidence.py"),
    *TESTS.glob("tracing/test_*.py"),
    *(TESTS / "callbacks" / name for name in ("test_black_box.py",)),
    *(TESTS / "health" / name for name in ("test_symmetry.py", "test_what_is_over.py")),
    TESTS / "experiments" / "test_experiments.py",
    TESTS / "ranks" / "test_drifted.py",
]
"""The tests that compute what the evidence should say."""

WORDS = 3
"""A test must quote so many of the words around a number, or all that there are."""

WITHOUT_ORACLE = {
    ("This took", "s weights"): "the time that it took",
    ("more than", "of them"): "the constant MAX_NODES",
    ("calls or", "autograd nodes"): "the constant MAX_NODES",
    ("of", "sampled"): "how many units there are, of which a sample was measured",
}
"""Numbers that no test compares with an oracle, by the words before and after them, and what they are."""


class Number(NamedTuple):
    """A number in a sentence.

    Args:
        before: the words between it and the number before it.
        after: those between it and the next one.
        names: in the source, the rules that say the sentence, empty if unknown. In a test, all strings and lower-case
            names in it and in the helpers that it calls.
        place: the file and the line.
    """

    before: list[str]
    after: list[str]
    names: frozenset[str]
    place: str = ""


def text(part: ast.expr) -> str:
    """A part of an f-string, with # for what it formats."""
    return part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else "#"


def plain(sentence: str) -> list[str]:
    """The words of a sentence, with # for each number, and without punctuation."""
    return re.findall(r"#|[^\W\d]+", re.sub(r"-?\d+(\.\d+)?(e[+-]?\d+)?", "#", sentence))


def around(words: list[str], place: int) -> tuple[list[str], list[str]]:
    """The words before and after a number, up to the next numbers."""
    before, after = words[:place][::-1], words[place + 1 :]
    before = before[: before.index("#")] if "#" in before else before
    return before[::-1], after[: after.index("#")] if "#" in after else after


def rules_by_function(tree: ast.Module) -> dict[str, set[str]]:
    """The rules of a file that each of its functions serves."""
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    rules: dict[str, set[str]] = {name: set() for name in functions}

    def reach(name: str, rule: str) -> None:
        if name in functions and rule not in rules[name]:
            rules[name].add(rule)
            for node in ast.walk(functions[name]):
                if isinstance(node, ast.Name):
                    reach(node.id, rule)

    for call, where in calls(tree):
        if call.func.id == "Rule" and isinstance(call.args[0], ast.Constant):
            reach(getattr(call.args[1], "id", ""), call.args[0].value)
        elif call.func.id == "Finding":
            for keyword in call.keywords:
                if keyword.arg == "rule":
                    reach(where, keyword.value.value)
    return rules


def calls(tree: ast.Module) -> Iterator[tuple[ast.Call, str]]:
    """Each call of a name, and the function at the top of the file that calls it."""
    for top in tree.body:
        for node in ast.walk(top):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                yield node, getattr(top, "name", "")


def numbers_said(file: Path) -> Iterator[Number]:
    """Each number that an f-string of a file formats, if it has words beside it."""
    tree = ast.parse(file.read_text())
    rules = rules_by_function(tree)
    for top in tree.body:
        for node in ast.walk(top):
            parts = node.values if isinstance(node, ast.JoinedStr) else []
            words = plain("".join(map(text, parts)))
            for i, part in enumerate(parts):
                if isinstance(part, ast.FormattedValue) and part.format_spec:
                    before, after = around(words, len(plain("".join(map(text, parts[:i])))))
                    if before or after:
                        names = frozenset(rules.get(getattr(top, "name", ""), ()))
                        yield Number(before, after, names, f"{file.name}:{part.lineno}")


def numbers_quoted(file: Path) -> Iterator[Number]:
    """Each number in the strings of a file of tests."""
    tops = ast.parse(file.read_text()).body
    used = [{node.id for node in ast.walk(top) if isinstance(node, ast.Name)} for top in tops]
    names = [{*strings_in(top), *map(str.lower, ids)} for top, ids in zip(tops, used, strict=True)]
    for top, ids in zip(tops, used, strict=True):
        of_helpers = [them for other, them in zip(tops, names, strict=True) if getattr(other, "name", "") in ids]
        for words in map(plain, strings_in(top)):
            for place, word in enumerate(words):
                if word == "#":
                    yield Number(*around(words, place), frozenset().union(names[tops.index(top)], *of_helpers))


def strings_in(top: ast.stmt) -> Iterator[str]:
    for node in ast.walk(top):
        if isinstance(node, ast.JoinedStr):
            yield "".join(map(text, node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def is_quoted(said: Number, quoted: Number) -> bool:
    """Whether a test of the number's rule quotes it, with the words around it."""
    before, after = min(len(said.before), len(quoted.before)), min(len(said.after), len(quoted.after))
    return (
        said.before[len(said.before) - before :] == quoted.before[len(quoted.before) - before :]
        and said.after[:after] == quoted.after[:after]
        and before + after >= min(WORDS, len(said.before) + len(said.after))
        and (not said.names or bool(said.names & quoted.names))
    )


def test_every_number_of_a_sentence_is_compared_with_an_oracle():
    quoted = [number for file in ORACLES for number in numbers_quoted(file)]
    found = [number for file in SENTENCES for number in numbers_said(file)]
    without = [number for number in found if not any(is_quoted(number, other) for other in quoted)]
    assert len(found) > 150
    missing = [
        f"{number.place} {'/'.join(sorted(number.names))}: {' '.join([*number.before[-6:], '#', *number.after[:6]])}"
        for number in without
        if words_of(number) not in WITHOUT_ORACLE
    ]
    if missing:
        pytest.fail("\n".join([f"{len(missing)} of {len(found)} numbers have no oracle:", *missing]), pytrace=False)
    assert set(map(words_of, without)) >= WITHOUT_ORACLE.keys(), "an entry of WITHOUT_ORACLE has no use"


def words_of(number: Number) -> tuple[str, str]:
    return " ".join(number.before[-2:]), " ".join(number.after[:2])
