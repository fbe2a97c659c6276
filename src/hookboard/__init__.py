"""See inside the model you train: Lightning callbacks that log activations, gradients and parameters of its layers.

This file lists everything public. README.md has examples; CONTRIBUTING.md defines the words of the source.
"""

from hookboard.callbacks import (
    ActivationLogger,
    CAMLogger,
    FeatureMapLogger,
    GradientLogger,
    HealthMonitor,
    Intervention,
    KernelLogger,
    ParameterLogger,
)
from hookboard.capture import Captured, CapturedModule, capture
from hookboard.health import Rule, Run, Symptom, Verdict
from hookboard.hooks import Clamp, ClipNorm, Edit, Noise, Replace, Scale, Zero
from hookboard.measure import Histogram, Moments, Statistic
from hookboard.messages import HookboardWarning
from hookboard.recording import Reading
from hookboard.sites import Site

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
    "HealthMonitor",
    "Histogram",
    "HookboardWarning",
    "Intervention",
    "KernelLogger",
    "Moments",
    "Noise",
    "ParameterLogger",
    "Reading",
    "Replace",
    "Rule",
    "Run",
    "Scale",
    "Site",
    "Statistic",
    "Symptom",
    "Verdict",
    "Zero",
    "capture",
]
