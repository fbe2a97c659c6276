"""Everything public: what `from hookboard import ...` finds."""

from hookboard.auditing import audit
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
    StepRecorder,
)
from hookboard.capturing import Captured, CapturedModule, capture
from hookboard.comparing import Comparison, Difference, compare, record
from hookboard.editing import Clamp, ClipNorm, Edit, Noise, Replace, Scale, Zero
from hookboard.experiments import CheckupReport, checkup
from hookboard.health import Finding, Rule, Run, Verdict
from hookboard.loops import for_transformers, watch
from hookboard.measure import Histogram, Moments, Statistic
from hookboard.messages import HookboardWarning
from hookboard.recording import Reading
from hookboard.report import Measured, ReadRun, read
from hookboard.sites import Site

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
    "StepRecorder",
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
