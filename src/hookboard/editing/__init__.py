"""Edits: rules that change tensors on their way through modules."""

from hookboard.editing.edits import Edit, EditRole, Edits, edited_gradient
from hookboard.editing.rules import Clamp, ClipNorm, EditRule, Noise, Replace, Rule, Scale, Zero, apply_rule, check_rule

__all__ = [
    "Clamp",
    "ClipNorm",
    "Edit",
    "EditRole",
    "EditRule",
    "Edits",
    "Noise",
    "Replace",
    "Rule",
    "Scale",
    "Zero",
    "apply_rule",
    "check_rule",
    "edited_gradient",
]
