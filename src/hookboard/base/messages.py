"""What users read: warnings, errors about unknown names, lists, tables in text, and what `rules.md` says of a rule."""

import difflib
import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in plain text, with columns as wide as their longest cell.

    >>> print(text_table(["name", "mean"], [["conv1", "0.5"]]))
    name   mean
    conv1  0.5
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in [header, *rows])


def cell_of(path: str) -> str:
    """Return the cell of IPython whose code has this path, as in "In [5]"; "" for a file."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    named = getattr(getattr(shell, "compile", None), "format_code_name", lambda path: None)(path)
    return named[1].replace("[", " [") if named else ""


def file_name(path: str) -> str:
    """Return what a user is told of a file: its name, or the cell of IPython."""
    return cell_of(path) or os.path.basename(path)


T = TypeVar("T")

MAX_LISTED = 12
MAX_QUOTED_CHARS = 120  # of what a user has given


PREFIX = "hookboard: "


class HookboardWarning(UserWarning):
    """The category of all hookboard warnings, for `warnings.filterwarnings`.

    Its text begins with "hookboard:", for filters of messages. Where Python shows it, after the name of this class, the
    prefix is left out: Python formats the warning there.

    >>> str(HookboardWarning("hookboard: no logger")), f"{HookboardWarning('hookboard: no logger')}"
    ('hookboard: no logger', 'no logger')
    """

    def __format__(self, spec: str) -> str:
        return format(str(self).removeprefix(PREFIX), spec)


def warn(text: str) -> None:
    """Give a `HookboardWarning` that begins with "hookboard:"; it never raises, even if warnings are errors."""
    # Where our code stands is of no use to the reader, nor is its text, which Python would print.
    place = "hookboard", 1
    try:
        warnings.warn_explicit(HookboardWarning(f"{PREFIX}{text}"), HookboardWarning, *place)
    except HookboardWarning as given:
        warnings.showwarning(given, HookboardWarning, *place)


def rank_zero_warn(text: str) -> None:
    """Give a warning, see `warn`, in the first process of a run only: for what all processes find."""
    if is_rank_zero():
        warn(text)


def inform(text: str, level: int = logging.INFO) -> None:
    """Log a line that begins with "hookboard:", to the logger of Lightning's own lines, in the first process only."""
    if is_rank_zero():
        logging.getLogger("lightning.pytorch").log(level, f"{PREFIX}%s", text)


def alert(text: str) -> None:
    """Log a line as `inform` does, but as a warning: it reaches those who have silenced Lightning's information."""
    inform(text, logging.WARNING)


def is_rank_zero() -> bool:
    """Return True in the first process of a run, as Lightning knows it."""
    # Not imported here: a script of the user's may run without it, and its import draws random numbers.
    rank_zero = sys.modules.get("lightning.pytorch.utilities.rank_zero")
    return rank_zero is None or getattr(rank_zero.rank_zero_only, "rank", 0) == 0


def warn_switched_off(what: str, error: Exception) -> None:
    """Warn that something, the subject of the sentence, is no longer measured or written."""
    cause = f"{type(error).__name__}: {error}{_place_of(error)}"
    warn(f"{what} is switched off from now on; everything else continues. Cause: {cause}")


def closest(given: str, valid: Iterable[str]) -> list[str]:
    """Return up to three of the valid names that resemble `given`, as a whole or by their last parts; best first.

    >>> closest("encoder.layr1", ["encoder.layer1", "encoder.layer2", "head"])
    ['encoder.layer1', 'encoder.layer2']
    """
    given = given.replace("*", "")
    tails = {name: name.rpartition(".")[2] for name in valid}
    near = difflib.get_close_matches(given.rpartition(".")[2], tails.values())
    by_tail = [name for name in tails if tails[name] in near]
    return list(dict.fromkeys([*difflib.get_close_matches(given, tails), *by_tail]))[:3]


def unknown(kind: str, name: object, valid: Iterable[str]) -> ValueError:
    """Return the error for a name that is not in `valid`, with the closest valid ones; many are listed if none is.

    >>> unknown("statistic", "men", ["mean", "std"])
    ValueError("unknown statistic 'men'; did you mean 'mean'? Valid: mean, std.")
    """
    valid = list(valid)
    near = closest(name, valid) if isinstance(name, str) else []
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else "."
    said = "" if near and len(valid) > MAX_LISTED else f" Valid: {listed(valid)}."
    return ValueError(f"unknown {kind} {quoted(name)}{hint}{said}")


def quoted(value: object) -> str:
    """Return the `repr` of what a user has given, in one line of limited length.

    >>> quoted("a" * 1000)[-9:]
    'aaaaa ...'
    """
    text = " ".join(repr(value).split())
    return text if len(text) <= MAX_QUOTED_CHARS else f"{text[:MAX_QUOTED_CHARS]} ..."


def listed(names: Iterable[str], most: int = MAX_LISTED) -> str:
    """Join names with commas: the first `most` of them, then only the number of the others.

    >>> listed(["a", "b"], 2), listed(["a", "b", "c"], 2)
    ('a, b', 'a, b and 1 more')
    """
    names = list(names)
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def _place_of(error: Exception) -> str:
    """Return the innermost line outside of hookboard that an error passed, as " (model.py, line 7)"; "" if none."""
    ours = str(Path(__file__).parents[1])
    lines = [line for line in traceback.extract_tb(error.__traceback__) if not line.filename.startswith(ours)]
    return f" ({file_name(lines[-1].filename)}, line {lines[-1].lineno})" if lines else ""


PAGE = Path(__file__).with_name("rules.md")

LINK = re.compile(r" \(\[[^]]*\]\([^)]*\)\)|\[([^]]*)\]\([^)]*\)", re.DOTALL)
"""A link of Markdown: one in parentheses says nothing by itself, of any other the words stay."""

MAX_NAMED_RULES = 3  # in the command at the end of a message, which must fit into one line


def explained(rule: str) -> dict[str, str]:
    """Return the section of a built-in rule in plain text: a heading, such as "When it is wrong", to one paragraph.

    >>> explained("eval_mode")["Fix"]
    'set `momentum=0.1`; call `train()` on what is trained and `eval()` on what is frozen.'
    """
    rules = _built_in()
    if rule not in rules:
        raise unknown("rule", rule, rules)
    parts = re.findall(r"^- \*\*(.*?):\*\* (.*?)(?=^- |\Z)", rules[rule], re.DOTALL | re.MULTILINE)
    return {head: " ".join(LINK.sub(r"\1", text).split()) for head, text in parts}


def meanings(rules: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return what `explained` gives of each of these rules that is built in."""
    return {rule: explained(rule) for rule in sorted(_built_in().keys() & set(rules))}


def more_on(rules: Iterable[str]) -> str:
    """Return a line with the command that explains the first few of these rules; "" if none of them is built in.

    >>> more_on(["adapters", "my_own", "adapters"])
    'More: hookboard explain adapters'
    """
    names = [name for name in dict.fromkeys(rules) if name in _built_in()]
    return f"More: hookboard explain {' '.join(names[:MAX_NAMED_RULES])}" if names else ""


def _built_in() -> dict[str, str]:
    return {name: text for section in sections().values() for name, text in section.items()}


@cache
def sections() -> dict[str, dict[str, str]]:
    """Return heading to built-in rule to its text in Markdown."""
    found: dict[str, dict[str, str]] = {}
    for part in re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        heading, _, body = part.partition("\n")
        rules = re.split(r"^### `(\w+)`$", body, flags=re.MULTILINE)[1:]
        found[heading] = dict(zip(rules[::2], rules[1::2], strict=True))
    return found
