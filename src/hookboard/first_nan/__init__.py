"""Finds the first NaN or Inf of a training and the module that produced it.

`black_box.py` is called at each point of a step. It notices a NaN or Inf (`detect.py`), runs the batch again to find
the module (`search.py`) and the line of code (`operation.py`), and describes both in sentences (`explain.py`).
"""

from hookboard.first_nan.black_box import BlackBox
from hookboard.first_nan.explain import late_event

__all__ = [
    "BlackBox",
    "late_event",
]
