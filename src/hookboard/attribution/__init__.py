"""Class-activation maps: which regions of a picture speak for a class.

`methods.py` has the methods in one table; `layers.py` chooses the layer, `classification.py` finds the classifier in a
model, and `attribute.py` calls it once more to read the layer.
"""

from hookboard.attribution.attribute import Attribution, attribute
from hookboard.attribution.classification import MOST_CHANNELS, Classification, ClassificationTap
from hookboard.attribution.layers import Layer, last_layer, named_layer
from hookboard.attribution.methods import METHODS, Method

__all__ = [
    "METHODS",
    "MOST_CHANNELS",
    "Attribution",
    "Classification",
    "ClassificationTap",
    "Layer",
    "Method",
    "attribute",
    "last_layer",
    "named_layer",
]
