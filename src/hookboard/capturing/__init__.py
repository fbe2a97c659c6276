"""Tensors on their way through modules, without a Trainer: kept (`capture`), changed (`Edit`), and made into maps.

`edits.py` has the rules that change tensors. For class-activation maps `attribute.py` finds the classifier and the
layer, and `methods.py` has the methods in one table.
"""

from hookboard.capturing.attribute import (
    MAX_PICTURE_CHANNELS,
    Attribution,
    Classification,
    ClassificationTap,
    TargetLayer,
    attribute,
    default_layers,
    named_layer,
)
from hookboard.capturing.captured import Captured, CapturedModule, capture
from hookboard.capturing.edits import (
    Clamp,
    ClipNorm,
    Edit,
    EditRole,
    EditRule,
    Edits,
    Noise,
    Replace,
    Scale,
    Zero,
    check_rule,
)
from hookboard.capturing.methods import METHODS, Method

__all__ = [
    "MAX_PICTURE_CHANNELS",
    "METHODS",
    "Attribution",
    "Captured",
    "CapturedModule",
    "Clamp",
    "Classification",
    "ClassificationTap",
    "ClipNorm",
    "Edit",
    "EditRole",
    "EditRule",
    "Edits",
    "Method",
    "Noise",
    "Replace",
    "Scale",
    "TargetLayer",
    "Zero",
    "attribute",
    "capture",
    "check_rule",
    "default_layers",
    "named_layer",
]
