"""Patterns over dotted names, which `board/static/patterns.js` reads too; many names written as one pattern."""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from hookboard.base.messages import listed

T = TypeVar("T")

EXCLUDE_PREFIX = "!"  # of a pattern that excludes what it matches

REGEX_PREFIX = "re:"  # of a regular expression

STAR = r"(\*\*\.|\*\*|\*)"  # the regular expression of a star of a pattern

# `*` stays within one name, `**` crosses dots. "**." also stands for no module at all, as "**/" does in gitignore.
_STARS = {"*": r"([^.]*)", "**": r"(.*)", "**.": r"((?:.+\.)?)"}

MAX_STARS = 4


def parted(patterns: Iterable[T]) -> tuple[list[T], list[T]]:
    """Split what a user has given into what is included, such as a class, and what a leading `!` excludes, without it.

    >>> parted(["layers.*", "!layers.0"])
    (['layers.*'], ['layers.0'])
    """
    patterns = list(patterns)
    excluded: list[Any] = [one for one in patterns if isinstance(one, str) and one.startswith(EXCLUDE_PREFIX)]
    return [one for one in patterns if one not in excluded], [one.removeprefix(EXCLUDE_PREFIX) for one in excluded]


def is_pattern(name: str) -> bool:
    """Return True if a name is meant to match others: it has a star or begins with `re:`."""
    return "*" in name or name.startswith(REGEX_PREFIX)


def matched(pattern: str, names: Iterable[str]) -> list[str]:
    """Return the names that a pattern matches as a whole; "" is the model itself, which a single `*` does not match.

    >>> matched("**.conv", ["conv", "a.conv", "a.b.conv", "a.conv2"])
    ['conv', 'a.conv', 'a.b.conv']
    """
    try:
        if pattern.startswith(REGEX_PREFIX):
            expression = re.compile(pattern.removeprefix(REGEX_PREFIX))
        else:
            expression = re.compile(expression_of(pattern), re.DOTALL)  # a name may have any character
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from error
    return [name for name in names if (name or pattern != "*") and expression.fullmatch(name)]


def expression_of(pattern: str) -> str:
    r"""Return the regular expression of a pattern with stars, which has a group for each of them.

    >>> expression_of("encoder.layer.*")
    'encoder\\.layer\\.([^.]*)'
    """
    return "".join(_STARS.get(part, re.escape(part)) for part in re.split(STAR, pattern))


def folded(names: Iterable[str], among: Iterable[str] = ()) -> str:
    """Write names in one line; those that differ only in numbers become a pattern, if no other of `among` fits it.

    >>> folded(["layers.0.proj", "layers.1.proj", "head"])
    'layers.*.proj (2), head'
    """
    left = dict.fromkeys(names)
    everything, counts = {*left, *among}, Counter(pattern for name in left for pattern in _with_stars(name))
    meant = {pattern: matched(pattern, everything) for pattern, count in counts.items() if count > 1}
    said = []
    while left:
        name = next(iter(left))
        usable = [pattern for pattern in _with_stars(name) if pattern in meant and left.keys() >= {*meant[pattern]}]
        best = max(usable, key=lambda pattern: len(meant[pattern]), default=name)
        alike = set(meant.get(best, [name]))
        said.append(f"{best} ({len(alike)})" if usable else name)
        left = dict.fromkeys(other for other in left if other not in alike)
    return listed(said)


def _with_stars(name: str) -> Iterator[str]:
    """Yield the name with each choice of its parts that are numbers (the first MAX_STARS of them) replaced by stars."""
    parts = name.split(".")
    numbers = [i for i, part in enumerate(parts) if part.isdigit()][:MAX_STARS]
    for count in range(1, len(numbers) + 1):
        for places in itertools.combinations(numbers, count):
            yield ".".join("*" if i in places else part for i, part in enumerate(parts))
