"""Trainings that keep the raw tensors of all their steps, for the tests of the numbers that verdicts quote."""

import numpy as np
from recorded import EVERY, Recorded, rms


class Course(Recorded):
    """Keeps of each step the outputs, their gradients, those of the weights, and the weights before and after it."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.course, self.arrived, self.steps, self.begun, self.ended = [], [], [], [], []

    def on_before_optimizer_step(self, optimizer):
        super().on_before_optimizer_step(optimizer)
        self.course.append(dict(self.outputs))
        self.arrived.append(dict(self.gradients))
        self.steps.append(self.grads)
        self.begun.append(self.before)

    def on_train_batch_end(self, *args):
        super().on_train_batch_end(*args)
        self.ended.append(self.after)


def looks_of(count):
    """The steps of the looks: the first, and then every tenth."""
    return [0, *range(EVERY - 1, count, EVERY)]


def shortened(number, digits=2):
    """A number as it is printed."""
    return float(f"{number:.{digits}g}")


def of_layer(part, i):
    """The weight and the bias of a layer, as one vector."""
    return np.concatenate([part[f"net.{i}.{name}"].ravel() for name in ("weight", "bias")])


def ratio(model, step, i):
    """The RMS of a layer's update over that of its weights before the step."""
    before, after = (of_layer(part[step], i) for part in (model.begun, model.ended))
    return rms(after - before) / rms(before)
