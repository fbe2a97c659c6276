"""The built-in rules: one file for each family. To add a rule, write its function in one of them and list it here."""

from hookboard.health.rule import Rule

_ALL: tuple[Rule, ...] = ()

RULES: dict[str, Rule] = {rule.name: rule for rule in _ALL}
"""Every built-in rule by name."""
