"""Patterns over dotted names: which names they match, and how messages write many names as one pattern.

The page of the tab reads them too: `board/static/patterns.js`.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from hookboard.base.messages import listed

T = TypeVar("T")

EXCLUDE_PREFIX = "!"
"""The prefix of a pattern that excludes what it matches."""

REGEX_PREFIX = "re:"
"""The prefix of a regular expression."""

STAR = r"(\*\*\.|\*\*|\*)"
"""The regular expression of a star of a pattern."""

# "**." also stands for no module at all, as "**/" does in gitignore.
_STARS = {"*": r"([^.]*)", "**": r"(.*)", "**.": r"((?:.+\.)?)"}

MAX_STARS = 4


def parted(given: Iterable[T]) -> tuple[list[T], list[T]]:
    """Split what a user has given into what is included, and what a leading `!` excludes, without the `!`.

    What is not a string, such as a class, is included.

    >>> parted(["layers.*", "!layers.0"])
    (['layers.*'], ['layers.0'])
    """
    given = list(given)
    excluded: list[Any] = [one for one in given if isinstance(one, str) and one.startswith(EXCLUDE_PREFIX)]
    return [one for one in given if one not in excluded], [one.removeprefix(EXCLUDE_PREFIX) for one in excluded]


def is_pattern(name: str) -> bool:
    """Return True if a name is meant to match others: it has a star or begins with `re:`."""
    return "*" in name or name.startswith(REGEX_PREFIX)


def matched(pattern: str, names: Iterable[str]) -> list[str]:
    """Return the names that a pattern matches as a whole.

    Args:
        pattern: `*` stays within one name, `**` crosses dots; a leading `re:` makes it a regular expression.
        names: dotted names; "" is the model itself, which a single `*` does not match.

    Raises:
        ValueError: what follows `re:` is not a regular expression.

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
    """Write dotted names in one line; names that differ only in parts that are numbers become one pattern with stars.

    A pattern is used only if it matches no other name in `among`. The number of its names follows in parentheses. After
    the first 12 names and patterns only the number of the others is given.

    Args:
        names: the names to write.
        among: all names of the model; it may leave out those of `names`.

    >>> folded(["layers.0.proj", "layers.1.proj", "head"])
    'layers.*.proj (2), head'
    >>> folded(["layers.0", "layers.1"], among=["layers.final"])
    'layers.0, layers.1'
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
