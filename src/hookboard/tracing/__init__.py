"""Follows a training step from the batch to the loss, asks questions of it, and finds its first NaN.

The first step of a run:

1. `LiveStep` (`live_step.py`) begins before the batch, and puts a `StepTrace` (`program.py`) on torch's stack of
   modes. It records each call that the step makes: an `Op` with its line, its module and the `Value`s (`calls.py`).
   The tensors themselves are not kept, but where a call is one that a question will be about, an observer notes them.
2. Before each backward pass the calls up to the loss are a `TracedStep`, and most questions are asked of it
   (`questions.py` lists them). Some ask the graph of the loss for gradients of its parts (`PartialGraph`).
3. The step goes on: `ledger.py` notes what becomes of the gradients. When the batch has ended, `cut` and the questions
   about optimizers are asked; whether modes change and gradients are stale shows in later steps.
4. `LiveStep.end` returns the `StepFacts`: the findings, and what rules need to know of the step. The monitor passes
   them to the judge with each look.

`audit` (`step.py`) asks what can be asked of a single step of its own, and puts the model back. In each step
`black_box.py` watches for a NaN or Inf, and `bad_operation.py` finds in the graph of the loss where it came from.
"""
