"""See inside the model you train: Lightning callbacks that put what flows through its layers on TensorBoard."""

from hookboard.moments import Moments
from hookboard.statistics import Statistic

__version__ = "0.1.0"

__all__ = ["Moments", "Statistic"]
