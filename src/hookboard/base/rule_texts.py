"""What `rules.md` says of each built-in rule: `explained` of one; `more_on` leads to it at the end of a message."""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from hookboard.base.messages import unknown

PAGE = Path(__file__).with_name("rules.md")

LINK = re.compile(r" \(\[[^]]*\]\([^)]*\)\)|\[([^]]*)\]\([^)]*\)", re.DOTALL)
"""A link of Markdown: one in parentheses says nothing by itself, of any other the words stay."""

MAX_NAMED_RULES = 3
"""Maximum number of rules in the command at the end of a message, which must fit into one line."""


def explained(rule: str) -> dict[str, str]:
    """Return the section of a built-in rule in plain text: a heading, such as "When it is wrong", to one paragraph.

    Raises:
        ValueError: there is no such rule.

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
