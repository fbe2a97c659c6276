"""Edits: rules that change tensors on their way through modules, and the hooks that apply them."""

from hookboard.editing.edits import (
    Clamp,
    ClipNorm,
    Edit,
    EditFunction,
    EditRole,
    EditRule,
    Edits,
    Noise,
    Replace,
    Scale,
    Zero,
    apply_rule,
    check_rule,
    edited_gradient,
)

__all__ = [
    "Clamp",
    "ClipNorm",
    "Edit",
    "EditFunction",
    "EditRole",
    "EditRule",
    "Edits",
    "Noise",
    "Replace",
    "Scale",
    "Zero",
    "apply_rule",
    "check_rule",
    "edited_gradient",
]
