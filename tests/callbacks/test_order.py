"""Interventions and class-activation maps in one Trainer: the order of the list does not matter."""

import pytest
import torch
from callbacks.user_program import Does
from lightning.pytorch import Callback
from torch import nn
from toys import Toy, batches, events, fit, mlp

from hookboard import ActivationLogger, CAMLogger, GradientLogger, Intervention, Scale, Zero

VALIDATED = {"limit_val_batches": 1.0, "num_sanity_val_steps": 0}


def cnn(change=None):
    torch.manual_seed(0)
    convolution = nn.Conv2d(3, 4, 3)
    first = convolution if change is None else nn.Sequential(convolution, Does(change))
    return nn.Sequential(first, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))


def test_a_map_is_of_the_edited_model_wherever_the_intervention_stands(tmp_path):
    def drawn(name, *callbacks, change=None):
        data = list(torch.randn(3, 4, 3, 8, 8, generator=torch.Generator().manual_seed(1)))
        fit(tmp_path / name, Toy(cnn(change)), data, *callbacks, **VALIDATED)
        (event,) = events(tmp_path / name).Images("cam/net.1/grad_cam")
        return event.encoded_image_string

    cam = CAMLogger("net.1", target=1, every_n_steps=1)
    edit = Intervention(Scale(-2.0), "net.0", stages=["train", "validate"])
    expected = drawn("written", cam, change=lambda x: x * -2.0)
    assert drawn("before", edit, cam) == expected
    assert drawn("behind", cam, edit) == expected
    assert drawn("without", cam) != expected


class Looks(Callback):
    """Calls the model in one hook and keeps what it returns."""

    def __init__(self, hook):
        self.seen = []
        setattr(self, hook, self.look)

    def look(self, trainer, pl_module, *args, **kwargs):
        with torch.no_grad():
            self.seen.append(float(pl_module.net(torch.ones(1, 4)).abs().sum()))


@pytest.mark.parametrize("position", ["before", "behind"])
@pytest.mark.parametrize("hook", ["on_train_batch_end", "on_validation_batch_end"])
def test_an_edit_holds_until_all_callbacks_have_seen_the_end_of_the_batch(hook, position):
    edit, looks = Intervention(Zero(), "net.2", stages=["train", "validate"]), Looks(hook)
    fit(None, Toy(mlp()), batches(4, 4), *([edit, looks] if position == "before" else [looks, edit]), **VALIDATED)
    assert looks.seen == [0.0, 0.0]


@pytest.mark.parametrize("hook", ["on_validation_end", "on_train_epoch_end", "on_fit_end"])
def test_an_edit_does_not_outlast_its_loop(hook):
    edit, looks = Intervention(Zero(), "net.2", stages=["train", "validate"]), Looks(hook)
    fit(None, Toy(mlp()), batches(4, 4), edit, looks, **VALIDATED)
    assert all(looks.seen)


def test_an_edit_of_training_does_not_reach_into_a_validation():
    outputs = []

    class Keeps(Toy):
        def validation_step(self, batch):
            outputs.append(self.net(batch).detach().abs().sum().item())

    fit(None, Keeps(mlp()), batches(4, 4), Intervention(Zero(), "net.2"), val_check_interval=1, **VALIDATED)
    assert all(outputs)


@pytest.mark.parametrize("position", ["before", "behind"])
@pytest.mark.parametrize("role", ["output", "input", "grad_output", "grad_input"])
def test_hooks_that_come_back_for_a_step_see_what_an_intervention_changes(tmp_path, role, position):
    gradient = role.startswith("grad")
    make = GradientLogger if gradient else ActivationLogger
    watch, edit = (
        make("net.2", roles=role, every_n_steps=12, statistics="abs_max"),
        Intervention(Zero(), "net.2", role=role, first_step=11),
    )
    in_order = [edit, watch] if position == "before" else [watch, edit]
    fit(tmp_path, Toy(mlp()), batches(*[4] * 12), *in_order)
    (reading,) = watch.readings
    assert reading.statistics["abs_max"] == 0.0
