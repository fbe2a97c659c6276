"""`compare`: the first layer in which two models differ by more than rounding, and why."""

from hookboard.comparing.compare import compare, record, record_run
from hookboard.comparing.comparison import Comparison
from hookboard.comparing.faults import Difference
from hookboard.comparing.running import Runner, shown

__all__ = [
    "Comparison",
    "Difference",
    "Runner",
    "compare",
    "record",
    "record_run",
    "shown",
]
