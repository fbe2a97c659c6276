"""A run without TensorBoard: the command `hookboard`, a page in one file, and arrays in Python.

It is read from event files.
Nothing here imports torch, except for the verdicts of `read` and the command `hookboard compare`.
"""

from hookboard.report.command import main
from hookboard.report.one_file import page_in
from hookboard.report.readback import Measured, ReadRun, read

__all__ = ["Measured", "ReadRun", "main", "page_in", "read"]
