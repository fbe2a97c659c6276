"""Who holds a callback after a run, to read what it has found, holds nothing else of that run."""

import contextlib
import gc
import weakref

import pytest
import torch
from lateness import make_late
from lightning.pytorch import Callback
from torch import nn
from toys import Toy, trainer

import hookboard
from hookboard import HealthMonitor, Scale

BOTH = ["train", "validate"]
OPTIONS = {
    "ActivationLogger": {"every_n_steps": 1, "stages": BOTH, "histogram": True},
    "GradientLogger": {"every_n_steps": 1, "roles": ["grad_output", "grad_input", "parameter_grad"]},
    "ParameterLogger": {"every_n_steps": 1, "statistics": ["mean", "update_ratio"]},
    "FeatureMapLogger": {"every_n_steps": 1},
    "HealthMonitor": {"every_n_steps": 1},
    "KernelLogger": {"every_n_steps": 1},
    "CAMLogger": {"every_n_steps": 1},
    "Intervention": {"rule": Scale(0.5), "modules": "net.0", "stages": BOTH},
}

# The input pictures need no gradient, and SGD and ReLU lack what others have.
pytestmark = pytest.mark.filterwarnings("ignore:hookboard. [A-Z][a-z]+Logger. [0-9]+ of [0-9]+ sites")


def model():
    conv = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return Toy(nn.Sequential(*conv, nn.Linear(4, 5)))


class FailsInTheSecondStep(Callback):
    def on_before_backward(self, trainer, pl_module, loss):
        if trainer.global_step == 1:
            raise RuntimeError("on purpose")


def loader(seen):
    """Makes each of two batches anew, and keeps a weak reference to it."""

    def pictures(_):
        made = torch.randn(4, 3, 8, 8)
        seen.append(weakref.ref(made))
        return made

    return torch.utils.data.DataLoader(range(2), batch_size=None, collate_fn=pictures)


def run(folder, callback, how):
    """A run with this callback; weak references to what it was made of."""
    seen = []
    others = [FailsInTheSecondStep()] if how == "a fit that fails" else []
    trained, one = model(), trainer(folder, callback, *others, max_epochs=2, limit_val_batches=1.0)
    held = {"model": trained, "trainer": one, "logger": one.logger, "weight": trained.net[0].weight}
    if how == "a validation":
        one.validate(trained, loader(seen), verbose=False)
    else:
        with pytest.raises(RuntimeError, match="on purpose") if others else contextlib.nullcontext():
            one.fit(trained, loader(seen), loader(seen))
    held |= {f"optimizer {i}": optimizer for i, optimizer in enumerate(one.optimizers)}
    batches = {f"batch {i}": batch for i, batch in enumerate(seen)}
    return {name: weakref.ref(value) for name, value in held.items()} | batches


HOW = [("a fit", False), ("a fit", True), ("a fit that fails", True), ("a validation", False)]


@pytest.mark.parametrize(("how", "is_late"), HOW, ids=lambda each: {True: "late", False: "at once"}.get(each))
@pytest.mark.parametrize("name", OPTIONS)
def test_a_callback_that_is_held_after_a_run_keeps_nothing_of_it(name, how, is_late, tmp_path, monkeypatch):
    if is_late:
        make_late(monkeypatch)
    callback = getattr(hookboard, name)(**OPTIONS[name])
    held = run(tmp_path, callback, how)
    gc.collect()
    assert [what for what, reference in held.items() if reference() is not None] == []
    assert callback._live == {}


def test_a_callback_that_has_let_go_of_the_model_logs_in_the_next_run(tmp_path):
    """Lightning gives each callback `log` and `log_dict` at the start of every run."""

    class Logs(HealthMonitor):
        def on_train_batch_end(self, trainer, pl_module, *args):
            super().on_train_batch_end(trainer, pl_module, *args)
            self.log("of a subclass", 1.0)
            self.log_dict({"and another": 2.0})

    callback = Logs(every_n_steps=1)
    for folder in ("first", "second"):
        one = trainer(tmp_path / folder, callback)
        one.fit(model(), loader([]), loader([]))
        assert one.logged_metrics.keys() == {"loss", "of a subclass", "and another"}
