"""What experiments on a copy of the training have shown; `experiments/` makes them, and these rules pass it on."""

from functools import partial

from hookboard.health.rule import Rule, Symptom
from hookboard.health.run import Run

TRIED = ("learning_rate", "cannot_learn", "labels")
"""The names of the rules that experiments answer."""

TELLABLE = frozenset(
    {
        *("update_too_large", "update_too_small", "not_updated", "not_learning", "spike"),
        *("exploding_gradient", "vanishing_gradient", "dead_units", "saturated", "activation_scale", "collapsed"),
    }
)
"""The rules whose alarm may come from the rate, the targets, or a model that cannot learn: experiments tell which."""


def _found(name: str, run: Run) -> list[Symptom]:
    return [symptom for rule, symptom in run.findings if rule == name]


EXPERIMENT_RULES = tuple(Rule(name, partial(_found, name), at_once=True) for name in TRIED)
