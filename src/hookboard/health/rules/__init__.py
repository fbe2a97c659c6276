"""The built-in rules, one file for each family. To add a rule, write its function in one of them and list it here.

A rule is asked at every look and rarely has anything to say. So it first checks whole columns (`Run.recent`,
`Run.latest`) for whether any layer can have the symptom at all, and then those layers one by one.
"""

from hookboard.health.rule import Rule
from hookboard.health.rules.evaluation import TRAIN_EVAL_GAP
from hookboard.health.rules.experiments import EXPERIMENT_RULES
from hookboard.health.rules.gradient_flow import EXPLODING, VANISHING
from hookboard.health.rules.input_data import INPUT_SCALE
from hookboard.health.rules.learning import NOT_LEARNING, SPIKE
from hookboard.health.rules.numerics import NONFINITE, PRECISION
from hookboard.health.rules.optimizer import NO_GRADIENT, NOT_UPDATED
from hookboard.health.rules.scale import ACTIVATION_SCALE
from hookboard.health.rules.signal import COLLAPSED, SATURATED
from hookboard.health.rules.training_step import STEP_RULES
from hookboard.health.rules.units import DEAD_UNITS, SYMMETRIC_UNITS
from hookboard.health.rules.updates import UPDATE_TOO_LARGE, UPDATE_TOO_SMALL

_ALL: tuple[Rule, ...] = (
    NONFINITE,
    DEAD_UNITS,
    SYMMETRIC_UNITS,
    NO_GRADIENT,
    NOT_UPDATED,
    UPDATE_TOO_LARGE,
    UPDATE_TOO_SMALL,
    SATURATED,
    VANISHING,
    EXPLODING,
    ACTIVATION_SCALE,
    COLLAPSED,
    INPUT_SCALE,
    PRECISION,
    SPIKE,
    TRAIN_EVAL_GAP,
    NOT_LEARNING,
    *STEP_RULES,
    *EXPERIMENT_RULES,
)

RULES: dict[str, Rule] = {rule.name: rule for rule in _ALL}
"""Every built-in rule by name, in the order in which their verdicts are listed."""
