"""What experiments on a copy of the training have shown; `experiments/` makes them, and these rules pass it on."""

from hookboard.health.rule import Rule, passed_on

TELLABLE = frozenset(
    {
        *("update_too_large", "update_too_small", "not_updated", "not_learning", "spike", "nonfinite"),
        *("exploding_gradient", "vanishing_gradient", "dead_units", "saturated", "activation_scale", "collapsed"),
    }
)
"""The rules whose alarm may come from the rate, the targets, or a model that cannot learn: experiments tell which."""


def _rule(name: str, about: str) -> Rule:
    return Rule(name, passed_on, at_once=True, about=about)


EXPERIMENT_RULES = (
    _rule("learning_rate", "the loss falls at another learning rate, and not at this one"),
    _rule("cannot_learn", "all gradients are exactly 0, or the loss falls at no learning rate"),
    _rule("labels", "all targets are the same class, or nothing is learned that holds for other batches"),
)

TRIED = frozenset(rule.name for rule in EXPERIMENT_RULES)
"""The names of the rules that experiments answer."""
