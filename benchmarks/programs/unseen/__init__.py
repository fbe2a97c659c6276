"""Published programs that no rule was written with, and healthy ones of the same kinds.

`python -m benchmarks.programs.steps` runs them. The causes were committed before any monitor saw a program.
"""

from benchmarks.programs.steps import CASES, HEALTHY
from benchmarks.programs.unseen import agents, generators, pairs, scenes, sequences  # noqa: F401  # each enters its own

__all__ = ["CASES", "HEALTHY", "LEFT_OUT"]

LEFT_OUT = {
    "How-Diffusion-Models-Work 1": "no harm: noise without the root costs 0.01 on points of a ring",
}
"""What was ported or looked at, and why it is not here."""
