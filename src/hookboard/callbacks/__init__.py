"""The public callbacks, one file each.

Their base class, with the methods that they override, is in `loops/callback.py`.
`numbers.py` is the base of callbacks that log numbers, `pictures.py` of those that log pictures.
"""

from hookboard.callbacks.activation import ActivationLogger
from hookboard.callbacks.cam import CAMLogger
from hookboard.callbacks.checkup import Checkup
from hookboard.callbacks.feature_map import FeatureMapLogger
from hookboard.callbacks.gradient import GradientLogger
from hookboard.callbacks.health_monitor import HealthMonitor
from hookboard.callbacks.intervention import Intervention
from hookboard.callbacks.kernel import KernelLogger
from hookboard.callbacks.parameter import ParameterLogger

__all__ = [
    "ActivationLogger",
    "CAMLogger",
    "Checkup",
    "FeatureMapLogger",
    "GradientLogger",
    "HealthMonitor",
    "Intervention",
    "KernelLogger",
    "ParameterLogger",
]
