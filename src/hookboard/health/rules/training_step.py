"""What is wrong with the training step itself; `auditing/` reads it in the code, and these rules pass it on."""

from functools import partial

from hookboard.health.rule import Rule, Symptom
from hookboard.health.run import Run

_NAMES = "loss_input no_influence batch_mixing loss_shape output_range targets cut masked_row eval_mode "
_NAMES += "unbounded_loss loss_scale future_leak stale_gradients not_in_optimizer frozen schedule"

STEP = frozenset(_NAMES.split())
"""The names of the rules that judge the code of the training step."""


def _found(name: str, run: Run) -> list[Symptom]:
    return [symptom for rule, symptom in run.findings if rule == name]


STEP_RULES = tuple(Rule(name, partial(_found, name), at_once=True) for name in _NAMES.split())
