"""`RULES`: each `Rule` in a file of `health/rules/`, about numbers, or in one of those below, about the step."""

from importlib import import_module

from hookboard.health.rule import Rule, rules_in
from hookboard.health.rules import LOOK_RULES

_ABOUT_THE_STEP = "influence rules modes dependence leak dice scaling cuts adapters experts optimizing stale"

STEP_RULES: tuple[Rule, ...] = tuple(
    rule for file in _ABOUT_THE_STEP.split() for rule in rules_in(import_module(f"hookboard.tracing.{file}"))
)
"""The rules about the code of the first training step, in the order in which they are asked. Where several functions
answer for one rule, each stands in a `Rule` of that name."""

RULES: dict[str, Rule] = {}
"""Every built-in rule by name; of several with one name the first."""

for one in (*LOOK_RULES, *STEP_RULES):
    RULES.setdefault(one.name, one)

STEP = frozenset(rule.name for rule in STEP_RULES)
"""The names of the rules that judge the code of the training step, some of them later looks too."""
