"""One file for each callback; `base` is the life they share."""

from hookboard.callbacks.activation import ActivationLogger
from hookboard.callbacks.gradient import GradientLogger
from hookboard.callbacks.parameter import ParameterLogger

__all__ = ["ActivationLogger", "GradientLogger", "ParameterLogger"]
