"""A second set of published programs that no rule was written with, and of healthy ones of other kinds.

`python -m benchmarks.programs.steps --series later` runs them. The causes were committed before any monitor saw a
program.
"""

from benchmarks.programs.steps import entered_in
from benchmarks.programs.unseen_later import agents, classes, generators, pairs, scenes, sequences  # noqa: F401  # each enters its own

__all__ = ["CASES", "HEALTHY", "LEFT_OUT"]

CASES, HEALTHY = entered_in(__name__)

LEFT_OUT: dict[str, str] = {}
"""What was ported or looked at, and why it is not here."""
