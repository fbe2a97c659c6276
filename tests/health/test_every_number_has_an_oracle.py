"""Every number that the evidence of a rule holds is compared with an oracle by a test."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

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
    """A number in a sentence: the words between it and the numbers before and after it, and the file and the line."""

    before: list[str]
    after: list[str]
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


def numbers_said(file: Path) -> Iterator[Number]:
    """Each number that an f-string of a file formats, if it has words beside it."""
    for node in ast.walk(ast.parse(file.read_text())):
        parts = node.values if isinstance(node, ast.JoinedStr) else []
        words = plain("".join(map(text, parts)))
        for i, part in enumerate(parts):
            if isinstance(part, ast.FormattedValue) and part.format_spec:
                before, after = around(words, len(plain("".join(map(text, parts[:i])))))
                if before or after:
                    yield Number(before, after, f"{file.name}:{part.lineno}")


def numbers_quoted(file: Path) -> Iterator[Number]:
    """Each number in the strings of a file of tests."""
    for node in ast.walk(ast.parse(file.read_text())):
        words = plain("".join(map(text, node.values if isinstance(node, ast.JoinedStr) else [node])))
        for place, word in enumerate(words):
            if word == "#" and isinstance(node, (ast.JoinedStr, ast.Constant)):
                yield Number(*around(words, place))


def is_quoted(said: Number, quoted: Number) -> bool:
    """Whether a test quotes the number, with the words around it."""
    before, after = min(len(said.before), len(quoted.before)), min(len(said.after), len(quoted.after))
    return (
        said.before[len(said.before) - before :] == quoted.before[len(quoted.before) - before :]
        and said.after[:after] == quoted.after[:after]
        and before + after >= min(WORDS, len(said.before) + len(said.after))
    )


def test_every_number_of_a_sentence_is_compared_with_an_oracle():
    quoted = [number for file in ORACLES for number in numbers_quoted(file)]
    found = [number for file in SENTENCES for number in numbers_said(file)]
    without = [number for number in found if not any(is_quoted(number, other) for other in quoted)]
    assert len(found) > 150
    assert [number for number in without if words_of(number) not in WITHOUT_ORACLE] == []
    assert set(map(words_of, without)) >= WITHOUT_ORACLE.keys(), "an entry of WITHOUT_ORACLE has no use"


def words_of(number: Number) -> tuple[str, str]:
    return " ".join(number.before[-2:]), " ".join(number.after[:2])
