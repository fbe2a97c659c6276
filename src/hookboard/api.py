"""Everything public: what `from hookboard import ...` finds."""

from hookboard.base.messages import HookboardWarning
from hookboard.board.readback import Measured, ReadRun, read
from hookboard.callbacks.activation import ActivationLogger
from hookboard.callbacks.cam import CAMLogger
from hookboard.callbacks.checkup import Checkup
from hookboard.callbacks.feature_map import FeatureMapLogger
from hookboard.callbacks.gradient import GradientLogger
from hookboard.callbacks.health_monitor import HealthMonitor
from hookboard.callbacks.intervention import Intervention
from hookboard.callbacks.kernel import KernelLogger
from hookboard.callbacks.parameter import ParameterLogger
from hookboard.capturing.captured import Captured, CapturedModule, capture
from hookboard.capturing.edits import Clamp, ClipNorm, Edit, Noise, Replace, Scale, Zero
from hookboard.comparing.compare import compare, record
from hookboard.comparing.comparison import Comparison
from hookboard.comparing.faults import Difference
from hookboard.experiments.experiment import CheckupReport
from hookboard.experiments.one_page import checkup
from hookboard.health.rule import Finding, Rule, Verdict
from hookboard.health.run import Run
from hookboard.loops.bare import watch
from hookboard.loops.hugging_face import for_transformers
from hookboard.measure.histogram import Histogram
from hookboard.measure.readings import Reading
from hookboard.measure.row import Moments
from hookboard.measure.statistics import Statistic
from hookboard.model.sites import Site
from hookboard.tracing.audit import audit

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
