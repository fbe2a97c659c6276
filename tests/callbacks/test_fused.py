"""`nn.TransformerEncoderLayer` runs as one operation in evaluation, as it does without our callbacks."""

import pytest
import torch
from lightning.pytorch import LightningModule
from toys import encoder, fit, hooked, sequences

from hookboard import (
    ActivationLogger,
    CAMLogger,
    FeatureMapLogger,
    GradientLogger,
    HealthMonitor,
    HookboardWarning,
    ParameterLogger,
)


class Student(LightningModule):
    """Learns what a frozen teacher says, whose attention sees the masked positions or not."""

    def __init__(self, norm_first, leaves_grad_on=False, is_switched_late=False):
        super().__init__()
        self.teacher = encoder(norm_first)
        self.student = encoder(norm_first, dropout=0.1)
        self.leaves_grad_on, self.losses = leaves_grad_on, []
        if not is_switched_late:
            self.teacher.eval().requires_grad_(False)

    def training_step(self, batch):
        self.teacher.eval().requires_grad_(False)
        with torch.set_grad_enabled(self.leaves_grad_on):
            taught = self.teacher(batch)
        loss = (self.student(batch) - taught).square().mean()
        self.losses.append(loss.detach())
        return loss

    def validation_step(self, batch):
        mask = torch.zeros(batch.shape[:2], dtype=torch.bool)
        mask[:, -1] = True
        mask[0] = True  # fully: torch's one operation gives NaN, its modules do not
        self.losses.append(self.student(batch, src_key_padding_mask=mask).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


def trained(*callbacks, **options):
    model = Student(**options)
    fit(None, model, sequences(3, 3, 3), *callbacks, limit_val_batches=2, num_sanity_val_steps=1, val_check_interval=1)
    return [str(loss.item()) for loss in model.losses], [weight.tolist() for weight in model.parameters()]


pytestmark = pytest.mark.filterwarnings("ignore:Found .* in eval mode at the start of training")


@pytest.fixture(autouse=True)
def _without_a_logger(monkeypatch):
    monkeypatch.setattr("hookboard.loops.callback.HookboardCallback.needs_logger", False)


def every_watch():
    return [
        HealthMonitor(every_n_steps=1),
        ActivationLogger(roles=["input", "output"], stages=["train", "validate"], every_n_steps=1),
        GradientLogger(roles=["grad_input", "grad_output"], every_n_steps=2),
        ParameterLogger(every_n_steps=1),
        FeatureMapLogger("student.layers.*.linear1", stage="train", every_n_steps=1),
        CAMLogger(every_n_steps=1),
    ]


@pytest.mark.filterwarnings("ignore::hookboard.HookboardWarning")
@pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
@pytest.mark.parametrize("late", [False, True], ids=["eval before", "eval in the step"])
@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "frozen"])
def test_a_frozen_teacher_teaches_the_same(grad, late, norm_first):
    """Beside each callback alone it does in tests/combinations."""
    options = {"norm_first": norm_first, "leaves_grad_on": grad, "is_switched_late": late}
    assert trained(*every_watch(), **options) == trained(**options)


def test_nothing_stays_on_the_layers(tmp_path):
    model = Student(norm_first=False)
    with pytest.warns(HookboardWarning, match="an nn.TransformerEncoderLayer, and all inside it, as one operation"):
        fit(tmp_path, model, sequences(3, 3), ActivationLogger(every_n_steps=1), HealthMonitor(), limit_val_batches=1)
    assert hooked(model) == []
