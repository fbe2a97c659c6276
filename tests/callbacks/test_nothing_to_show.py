"""A callback that finds nothing to show in a model, or no way to show it, says so in one line; the fit goes on."""

import pytest
import torch
from callbacks.heard import warnings_of
from lightning.pytorch import LightningModule
from torch import nn
from toys import Toy, batches, fit, mlp

from hookboard import (
    ActivationLogger,
    CAMLogger,
    FeatureMapLogger,
    GradientLogger,
    Intervention,
    KernelLogger,
    ParameterLogger,
    Zero,
)

VALIDATED = {"limit_val_batches": 1.0, "num_sanity_val_steps": 0}
LOGGERS = [ActivationLogger, GradientLogger, ParameterLogger, FeatureMapLogger, KernelLogger, CAMLogger]


class Bare(LightningModule):
    """Has no submodule, and, unless asked, no parameter."""

    def __init__(self, has_parameter):
        super().__init__()
        self.automatic_optimization = has_parameter
        if has_parameter:
            self.weight = nn.Parameter(torch.ones(4))

    def training_step(self, batch):
        return (batch * getattr(self, "weight", 1)).sum()

    def validation_step(self, batch):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1) if list(self.parameters()) else None


@pytest.fixture
def lines(monkeypatch):
    said = []
    monkeypatch.setattr("hookboard.loops.callback.inform", said.append)
    return said


@pytest.mark.filterwarnings("ignore:.*this fit will run with no optimizer")
@pytest.mark.parametrize("has_log", [True, False])
@pytest.mark.parametrize("make", LOGGERS)
def test_without_arguments_on_a_model_without_anything(tmp_path, lines, make, has_log):
    run = fit(tmp_path if has_log else None, Bare(has_parameter=False), batches(4, 4), make(), **VALIDATED)
    assert run.state.finished
    (line,) = lines
    assert line.startswith(make.__name__)
    assert "nothing: the model has no " in line


@pytest.mark.parametrize("make", [KernelLogger, FeatureMapLogger, lambda: GradientLogger(roles="parameter_grad")])
def test_parts_that_are_there_are_shown_all_the_same(tmp_path, lines, make):
    run = fit(tmp_path, Bare(has_parameter=True), batches(4), make(), **VALIDATED)
    assert run.state.finished
    assert len(lines) == (0 if isinstance(make(), GradientLogger) else 1)


@pytest.mark.parametrize("callback", [KernelLogger("net.0"), ParameterLogger("net.1"), GradientLogger(types="Conv2d")])
def test_what_was_named_and_is_not_there_stays_an_error(callback):
    with pytest.raises(ValueError, match=r"net\.|Conv2d|Linear"):
        fit(None, Toy(mlp()), batches(4), callback)


def test_an_intervention_in_nothing_is_an_error():
    with pytest.raises(ValueError, match="the model has no module"):
        fit(None, Bare(has_parameter=True), batches(4), Intervention(Zero()))


def test_a_model_that_sees_no_pictures_is_no_fault(tmp_path):
    cam = CAMLogger(every_n_steps=1)
    (said,) = warnings_of(lambda: fit(tmp_path, Toy(mlp()), batches(4, 4), cam, max_epochs=2, **VALIDATED))
    assert said.startswith("hookboard: CAMLogger shows nothing: no module took pictures")
    assert "switched off" not in said
    assert "Error" not in said
