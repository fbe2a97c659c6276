"""Patterns over dotted names: what they match, and which pattern stands for several names in a message."""

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from hookboard.messages import listed

MOST_STARS = 4


def regex_of(pattern: str) -> re.Pattern[str]:
    """What a pattern matches, as a regular expression for whole names.

    Raises:
        ValueError: what follows `re:` is no regular expression.
    """
    if pattern.startswith("re:"):
        try:
            return re.compile(pattern.removeprefix("re:"))
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"modules: {pattern!r} is not a regular expression: {error}") from error
    # "**." in front of a name also stands for no module at all, as "**/" does in gitignore.
    parts = re.split(r"(\*\*\.|\*\*|\*)", pattern)
    meaning = {"**.": r"(?:.+\.)?", "**": r".*", "*": r"[^.]*"}
    return re.compile("".join(meaning.get(part, re.escape(part)) for part in parts), re.DOTALL)


def folded(names: Iterable[str], among: Iterable[str] = ()) -> str:
    """Dotted names in one line; names that differ only in numbers are written as one pattern, with a star.

    A pattern is used only if it matches no other name of `among`. The count of its names follows in parentheses.

    Args:
        names: the names to write.
        among: all names of the model; it may leave out those of `names`.

    >>> folded(["layers.0.proj", "layers.1.proj", "head"])
    'layers.*.proj (2), head'
    >>> folded(["layers.0", "layers.1"], among=["layers.final"])
    'layers.0, layers.1'
    """
    names = list(dict.fromkeys(names))
    there: dict[int, list[str]] = defaultdict(list)  # by depth, as a star stays within one name
    for name in {*names, *among} - {""}:
        there[name.count(".")].append(name)
    likely = Counter(pattern for name in names for pattern in _with_stars(name))
    meant: dict[str, set[str]] = {}
    for pattern in (pattern for pattern, count in likely.items() if count > 1):
        matched = {name for name in there[pattern.count(".")] if regex_of(pattern).fullmatch(name)}
        if matched <= set(names):
            meant[pattern] = matched
    said: dict[str, None] = {}
    done: set[str] = set()
    for name in names:
        if name not in done:
            usable = [p for p in _with_stars(name) if p in meant and not meant[p] & done]
            best = max(usable, key=lambda pattern: len(meant[pattern]), default=None)
            done |= meant[best] if best else {name}
            said[f"{best} ({len(meant[best])})" if best else name] = None
    return listed(said)


def _with_stars(name: str) -> Iterator[str]:
    """The patterns that the name matches: some or all of its numeric parts replaced by stars."""
    parts = name.split(".")
    numbers = [i for i, part in enumerate(parts) if part.isdigit()][:MOST_STARS]
    for count in range(1, len(numbers) + 1):
        for chosen_ones in itertools.combinations(numbers, count):
            yield ".".join("*" if i in chosen_ones else part for i, part in enumerate(parts))
