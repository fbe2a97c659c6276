"""The built-in rules, one file for each family: each `Rule` that a file of this folder holds is one of them.

A rule is asked at every look and rarely has anything to say. So it first checks whole columns (`Run.recent`,
`Run.latest`) for whether any layer can have the symptom at all, and then those layers one by one.
"""

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

from hookboard.health.rule import Rule


def _rules_in(family: ModuleType) -> Iterator[Rule]:
    for value in vars(family).values():
        yield from (each for each in (value if isinstance(value, tuple) else (value,)) if isinstance(each, Rule))


FAMILIES: dict[str, tuple[Rule, ...]] = {
    file.name: tuple(_rules_in(import_module(f"{__name__}.{file.name}"))) for file in iter_modules(__path__)
}
"""Name of each file of this folder, without ".py" -> its rules."""

RULES: dict[str, Rule] = {rule.name: rule for rules in FAMILIES.values() for rule in rules}
"""Every built-in rule by name."""
