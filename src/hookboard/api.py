"""Everything public: what `from hookboard import ...` finds."""

from hookboard.base.messages import HookboardWarning
from hookboard.board import Measured, ReadRun, read
from hookboard.callbacks import (
    ActivationLogger,
    CAMLogger,
    Checkup,
    FeatureMapLogger,
    GradientLogger,
    HealthMonitor,
    Intervention,
    KernelLogger,
    ParameterLogger,
)
from hookboard.capturing import Captured, CapturedModule, Clamp, ClipNorm, Edit, Noise, Replace, Scale, Zero, capture
from hookboard.comparing import Comparison, Difference, compare, record
from hookboard.experiments import CheckupReport, checkup
from hookboard.health import Finding, Rule, Run, Verdict
from hookboard.loops import for_transformers, watch
from hookboard.measure import Histogram, Moments, Reading, Statistic
from hookboard.model.sites import Site
from hookboard.tracing import audit

__all__ = [
    "ActivationLogger",
    "CAMLogger",
    "Captured",
    "CapturedModule",
    "Checkup",
    "CheckupReport",
    "Clamp",
    "ClipNorm",
    "Comparison",
    "Difference",
    "Edit",
    "FeatureMapLogger",
    "Finding",
    "GradientLogger",
    "HealthMonitor",
    "Histogram",
    "HookboardWarning",
    "Intervention",
    "KernelLogger",
    "Measured",
    "Moments",
    "Noise",
    "ParameterLogger",
    "ReadRun",
    "Reading",
    "Replace",
    "Rule",
    "Run",
    "Scale",
    "Site",
    "Statistic",
    "Verdict",
    "Zero",
    "audit",
    "capture",
    "checkup",
    "compare",
    "for_transformers",
    "read",
    "record",
    "watch",
]
