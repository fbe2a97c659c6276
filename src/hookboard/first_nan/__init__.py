"""Finds the first NaN or Inf of a training and the operation that produced it, without running any code twice.

`black_box.py` is called at each point of a step. It notices a NaN or Inf (`detect.py`), searches the graph of the loss
for the operation (`bad_operation.py`), and describes it in sentences (`explain.py`).
"""

from hookboard.first_nan.bad_operation import Program, ProgramStep, nodes_behind
from hookboard.first_nan.black_box import BlackBox
from hookboard.first_nan.explain import late_event

__all__ = [
    "BlackBox",
    "Program",
    "ProgramStep",
    "late_event",
    "nodes_behind",
]
