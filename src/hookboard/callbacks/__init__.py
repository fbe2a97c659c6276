"""What a Trainer is given: one file for each callback.

`life.py` is the life that all of them share, `duties.py` what each may say and do of its own in it; `numbers.py` is the
base of those that log numbers, `pictures.py` of those that log pictures.
"""

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
