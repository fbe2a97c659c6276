"""The built-in rules about numbers, one file for each family: each `Rule` that a file of this folder holds is one.

A rule is asked at every look and rarely has anything to say. So it first checks whole columns (`Run.recent`,
`Run.latest`) for whether any layer can have the finding at all, and then those layers one by one.

| file | asks |
|---|---|
| `input_data.py` | is the input of a usual size |
| `scale.py`, `signal.py` | does the signal shrink, grow or become constant on its way, forward and backward |
| `units.py` | are units dead, or copies of each other |
| `optimizer.py`, `updates.py` | do the weights move, and not too far |
| `learning.py` | does the loss fall, or spike |
| `evaluation.py` | does validation match training |
| `numerics.py` | are the numbers finite, and representable |
| `routing.py`, `between_ranks.py` | do experts share the tokens, ranks the weights |
"""

from importlib import import_module
from pkgutil import iter_modules

from hookboard.health.rule import Rule, rules_in

LOOK_RULES: tuple[Rule, ...] = tuple(
    rule for file in iter_modules(__path__) for rule in rules_in(import_module(f"{__name__}.{file.name}"))
)
"""Every built-in rule about numbers."""
