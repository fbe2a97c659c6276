"""Class-activation maps: which regions of a picture speak for a class.

`methods.py` has the methods in one table; `attribute.py` finds the classifier and the target layer in a model, and
calls the classifier once more to read the layer.
"""

from hookboard.attribution.attribute import (
    MAX_PICTURE_CHANNELS,
    Attribution,
    Classification,
    ClassificationTap,
    TargetLayer,
    attribute,
    default_layer,
    named_layer,
)
from hookboard.attribution.methods import METHODS, Method

__all__ = [
    "MAX_PICTURE_CHANNELS",
    "METHODS",
    "Attribution",
    "Classification",
    "ClassificationTap",
    "Method",
    "TargetLayer",
    "attribute",
    "default_layer",
    "named_layer",
]
