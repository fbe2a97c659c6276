"""Notices the first NaN or Inf of a training, runs that step again to find its source, and explains it."""

from hookboard.first_nan.black_box import BlackBox

__all__ = [
    "BlackBox",
]
