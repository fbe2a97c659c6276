"""The built-in rules about numbers, one file for each family: each `Rule` that a file of this folder holds is one.

A rule is asked at every look and rarely has anything to say. So it first checks whole columns (`Run.recent`,
`Run.latest`) for whether any layer can have the finding at all, and then those layers one by one.
"""

from importlib import import_module
from pkgutil import iter_modules

from hookboard.health.rule import Rule, rules_in

LOOK_RULES: tuple[Rule, ...] = tuple(
    rule for file in iter_modules(__path__) for rule in rules_in(import_module(f"{__name__}.{file.name}"))
)
"""Every built-in rule about numbers."""
