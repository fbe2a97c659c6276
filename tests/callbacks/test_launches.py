"""What the device has to do for hookboard in steps that are not due: nothing."""

import sys
from typing import ClassVar

import pytest
import torch
from callbacks.test_waits import NEVER, PICTURES, VALIDATED, Adam, classifier, convolutional, device, train
from pretended import Operations
from toys import Toy, batches, mlp

import hookboard
from hookboard import (
    ActivationLogger,
    CAMLogger,
    FeatureMapLogger,
    GradientLogger,
    HealthMonitor,
    KernelLogger,
    ParameterLogger,
)

__all__ = ["device"]

PACKAGE = hookboard.__path__[0]
VIEWS = {"detach", "alias", "view", "_unsafe_view", "t", "transpose", "unsqueeze", "select", "slice", "lift_fresh"}
"""They launch nothing."""
FIRST = 3
"""By this step, what looks at the first step or two has ended."""


class Counts(Operations):
    """Counts the operations on tensors of the device that code of hookboard asks for, by step."""

    found: ClassVar[list] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        given = [each for each in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        if name not in VIEWS and any(each in self.pretended for each in given):
            frame = sys._getframe(1)
            while frame is not None and "/lightning/" not in frame.f_code.co_filename:
                if frame.f_code.co_filename.startswith(PACKAGE):
                    self.found.append((name, f"{frame.f_code.co_filename}:{frame.f_lineno}"))
                    break
                frame = frame.f_back
        return super().__torch_dispatch__(function, types, args, kwargs)


@pytest.fixture
def launched(monkeypatch):
    found = []
    monkeypatch.setattr(Counts, "found", found)
    monkeypatch.setattr("pretended.Operations", Counts)
    return found


def marks_in(model, launched):
    """How much has been launched when each step begins, and at the end."""
    marks = []
    model.on_train_batch_start = model.on_train_end = lambda *args: marks.append(len(launched))
    return marks


WATCHED = {
    "HealthMonitor": lambda: HealthMonitor(every_n_steps=NEVER),
    "ActivationLogger": lambda: ActivationLogger(every_n_steps=NEVER, roles=["output", "input"]),
    "GradientLogger": lambda: GradientLogger(
        every_n_steps=NEVER, roles=["grad_output", "grad_input", "parameter_grad"]
    ),
    "ParameterLogger": lambda: ParameterLogger(every_n_steps=NEVER),
    "FeatureMapLogger": lambda: FeatureMapLogger("net.1", stage="train", every_n_steps=NEVER),
    "KernelLogger": lambda: KernelLogger(every_n_steps=NEVER),
}


@pytest.mark.parametrize("callback", WATCHED.values(), ids=WATCHED)
def test_nothing_is_launched_in_a_step_that_is_not_due(tmp_path, device, launched, callback):
    model = Adam(convolutional())
    marks = marks_in(model, launched)
    train(tmp_path, device, callback(), model=model, data=batches(*[8] * 8))
    # The monitor copies the loss, which it reads at the next look.
    copied = {"clone", "copy_"} if callback is WATCHED["HealthMonitor"] else set()
    assert {name for name, _ in launched[marks[FIRST] : marks[-2]]} <= copied


def test_nothing_is_launched_in_training_steps_for_pictures_of_validation(tmp_path, device, launched):
    model = classifier()
    marks = marks_in(model, launched)
    train(tmp_path, device, CAMLogger("net.1", every_n_steps=NEVER), model=model, data=PICTURES, **VALIDATED)
    assert launched[marks[FIRST] : marks[-2]] == []


def test_what_is_launched_in_a_due_step_is_seen(tmp_path, device, launched):
    model = Toy(mlp())
    marks = marks_in(model, launched)
    train(tmp_path, device, ActivationLogger(every_n_steps=1), model=model)
    assert launched[marks[FIRST] : marks[FIRST + 1]]
