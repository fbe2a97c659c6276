"""See inside the model you train: Lightning callbacks that put what flows through its layers on TensorBoard."""

from hookboard.callbacks import (
    ActivationLogger,
    CAMLogger,
    FeatureMapLogger,
    GradientLogger,
    Intervention,
    KernelLogger,
    ParameterLogger,
)
from hookboard.capture import Captured, capture
from hookboard.captured import CapturedModule
from hookboard.edits import Edit
from hookboard.histogram import Histogram
from hookboard.moments import Moments
from hookboard.recorder import Reading
from hookboard.rules import Clamp, ClipNorm, Noise, Replace, Scale, Zero
from hookboard.sites import Site
from hookboard.statistics import Statistic

__version__ = "0.1.0"

__all__ = [
    "ActivationLogger",
    "CAMLogger",
    "Captured",
    "CapturedModule",
    "Clamp",
    "ClipNorm",
    "Edit",
    "FeatureMapLogger",
    "GradientLogger",
    "Histogram",
    "Intervention",
    "KernelLogger",
    "Moments",
    "Noise",
    "ParameterLogger",
    "Reading",
    "Replace",
    "Scale",
    "Site",
    "Statistic",
    "Zero",
    "capture",
]
