"""The callbacks that a Trainer is given, one file each.

`loops/callback.py` has the hooks of Lightning and calls each callback at the right points; `loops/callback_methods.py`
lists the methods that a callback may override. `numbers.py` is the base of callbacks that log numbers, `pictures.py` of
those that log pictures.
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
