"""The built-in rules: one file for each family. To add a rule, write its function in one of them and list it here."""

from hookboard.health.rule import Rule
from hookboard.health.rules.data import INPUT_SCALE
from hookboard.health.rules.gradients import EXPLODING, VANISHING
from hookboard.health.rules.saturation import SATURATED
from hookboard.health.rules.signal import ACTIVATION_SCALE, COLLAPSED
from hookboard.health.rules.units import DEAD_UNITS, SYMMETRIC_UNITS

_ALL: tuple[Rule, ...] = (
    DEAD_UNITS,
    SYMMETRIC_UNITS,
    SATURATED,
    VANISHING,
    EXPLODING,
    ACTIVATION_SCALE,
    COLLAPSED,
    INPUT_SCALE,
)

RULES: dict[str, Rule] = {rule.name: rule for rule in _ALL}
"""Every built-in rule by name."""
