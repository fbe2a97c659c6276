"""See inside the model you train: Lightning callbacks that put what flows through its layers on TensorBoard."""

from hookboard.callbacks import ActivationLogger, GradientLogger, ParameterLogger
from hookboard.histogram import Histogram
from hookboard.moments import Moments
from hookboard.recorder import Reading
from hookboard.sites import Site
from hookboard.statistics import Statistic

__version__ = "0.1.0"

__all__ = [
    "ActivationLogger",
    "GradientLogger",
    "Histogram",
    "Moments",
    "ParameterLogger",
    "Reading",
    "Site",
    "Statistic",
]
