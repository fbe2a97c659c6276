"""All circumstances, by the axis on which they exclude each other."""

from combinations.case import Circumstance
from combinations.circumstances import nets, others, ours, runs, steps

AXES: dict[str, dict[str, Circumstance]] = {}
"""Axis to name to circumstance. A run has one circumstance of each axis; the first changes nothing."""

for module in (nets, steps, runs, others, ours):
    for name, circumstance in vars(module).items():
        if axis := getattr(circumstance, "axis", None):
            AXES.setdefault(axis, {})[name.replace("_", " ")] = circumstance
