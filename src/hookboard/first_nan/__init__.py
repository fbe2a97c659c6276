"""The first NaN or Inf of a training: noticed in its very step, searched for by running the step again, explained."""

from hookboard.first_nan.black_box import BlackBox

__all__ = [
    "BlackBox",
]
