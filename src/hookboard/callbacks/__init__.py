"""One file for each callback; `base` is the life of those that log numbers, `pictures` of those that log pictures."""

from hookboard.callbacks.activation import ActivationLogger
from hookboard.callbacks.cam import CAMLogger
from hookboard.callbacks.feature_map import FeatureMapLogger
from hookboard.callbacks.gradient import GradientLogger
from hookboard.callbacks.intervention import Intervention
from hookboard.callbacks.kernel import KernelLogger
from hookboard.callbacks.parameter import ParameterLogger

__all__ = [
    "ActivationLogger",
    "CAMLogger",
    "FeatureMapLogger",
    "GradientLogger",
    "Intervention",
    "KernelLogger",
    "ParameterLogger",
]
