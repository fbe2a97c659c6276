"""Whether a model's answers may go into a softmax."""

from hookboard.health.look import Look

BALANCED = 1e-3
"""The mean of the gradient of the model's outputs, as a share of its RMS, above which no softmax follows them, so that
they are no classifier's (a choice: after a softmax those of each sample add up to 0, but for rounding; where the loss
takes the logarithm of a softmax's answers it is 1 / sqrt(classes))."""


def may_follow_softmax(look: Look, name: str) -> bool:
    """Whether the loss may take a softmax of these outputs: then their gradients add up to 0 for each sample."""
    gradient = look.numbers(name, "grad_output")
    if gradient is None or not gradient.moments.count:
        return True
    return abs(gradient.moments.mean) <= BALANCED * gradient.moments.rms
