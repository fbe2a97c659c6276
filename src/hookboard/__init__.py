"""See inside the model you train: Lightning callbacks that put what flows through its layers on TensorBoard."""

from hookboard.callbacks import (
    ActivationLogger,
    CAMLogger,
    FeatureMapLogger,
    GradientLogger,
    KernelLogger,
    ParameterLogger,
)
from hookboard.capture import Captured, CapturedModule, capture
from hookboard.histogram import Histogram
from hookboard.moments import Moments
from hookboard.recorder import Reading
from hookboard.sites import Site
from hookboard.statistics import Statistic

__version__ = "0.1.0"

__all__ = [
    "ActivationLogger",
    "CAMLogger",
    "Captured",
    "CapturedModule",
    "FeatureMapLogger",
    "GradientLogger",
    "Histogram",
    "KernelLogger",
    "Moments",
    "ParameterLogger",
    "Reading",
    "Site",
    "Statistic",
    "capture",
]
