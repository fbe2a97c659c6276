"""Everything public: what `from hookboard import ...` finds."""

from hookboard.base.messages import HookboardWarning
from hookboard.board.folders import Measured, ReadRun, read
from hookboard.callbacks.cam import CAMLogger
from hookboard.callbacks.checkup import Checkup
from hookboard.callbacks.health_monitor import HealthMonitor
from hookboard.callbacks.intervention import Intervention
from hookboard.callbacks.numbers import ActivationLogger, GradientLogger, ParameterLogger
from hookboard.callbacks.pictures import FeatureMapLogger, KernelLogger
from hookboard.capturing.captured import Captured, CapturedModule, capture
from hookboard.capturing.edits import Clamp, ClipNorm, Edit, Noise, Replace, Scale, Zero
from hookboard.comparing.compare import Comparison, compare, record
from hookboard.comparing.faults import Difference
from hookboard.experiments.experiment import CheckupReport, checkup
from hookboard.health.rule import Finding, Rule, Verdict
from hookboard.health.run import Run
from hookboard.loops.bare import watch
from hookboard.loops.hugging_face import for_transformers
from hookboard.measure.row import Histogram, Moments, Reading
from hookboard.measure.statistics import Statistic
from hookboard.model.sites import Site
from hookboard.tracing.step import audit

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
