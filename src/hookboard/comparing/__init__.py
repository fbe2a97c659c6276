"""`compare`: the first layer in which two models differ by more than rounding, and why."""

from hookboard.comparing.compare import compare, record
from hookboard.comparing.comparison import Comparison
from hookboard.comparing.faults import Difference

__all__ = [
    "Comparison",
    "Difference",
    "compare",
    "record",
]
