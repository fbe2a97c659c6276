"""Class-activation maps: which places of a picture speak for a class."""

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
