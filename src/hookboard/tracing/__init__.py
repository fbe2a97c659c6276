"""Follows a training step from the batch to the loss, asks questions of it, and finds its first NaN.

`program.py` records the calls, and `questions.py` asks each question of them: in a fit by `live_step.py`, in a step of
its own by `audit` (`step.py`), which puts the model back. `black_box.py` notices a NaN or Inf, and `bad_operation.py`
finds in the graph of the loss where it came from.
"""
