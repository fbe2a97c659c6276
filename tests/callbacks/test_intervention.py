"""Intervention: training is that of a model into which the change is written."""

import pytest
import torch
from callbacks.compiling import compiles
from torch import nn
from toys import Toy, batches, events, fit, loader, mlp, scalars, trainer

from hookboard import ActivationLogger, Clamp, GradientLogger, Intervention, Noise, Scale, Zero

ROLES = ["input", "output", "grad_input", "grad_output"]


class Changes(nn.Module):
    """Changes what passes, or its gradient."""

    def __init__(self, change, is_of_gradient):
        super().__init__()
        self.change, self.is_of_gradient = change, is_of_gradient

    def forward(self, x):
        if not self.is_of_gradient:
            return self.change(x)
        x = x * 1.0
        x.register_hook(self.change)
        return x


def by_hand(role, change):
    """The three layers, with a change before or behind the last."""
    net, changes = mlp(), Changes(change, role.startswith("grad"))
    return nn.Sequential(*net[:2], changes, net[2]) if role.endswith("input") else nn.Sequential(*net, changes)


def weights(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("make", [lambda: Noise(0.1), lambda: Zero([1])])
def test_training_is_that_of_a_model_into_which_the_change_is_written(tmp_path, role, make):
    edited, changed, untouched = Toy(mlp()), Toy(by_hand(role, make())), Toy(mlp())
    data = batches(*[4] * 6)
    fit(None, edited, data, Intervention(make(), "net.2", role=role), accumulate_grad_batches=2)
    fit(None, changed, data, accumulate_grad_batches=2)
    fit(None, untouched, data, accumulate_grad_batches=2)
    assert all(torch.equal(a, b) for a, b in zip(weights(edited), weights(changed), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(weights(edited), weights(untouched), strict=True))


def test_noise_leaves_the_random_state_of_the_run_alone():
    def state(*callbacks):
        torch.manual_seed(3)
        fit(None, Toy(mlp()), batches(4, 4), *callbacks)
        return torch.get_rng_state()

    assert torch.equal(state(Intervention(Noise(1.0), "net.0")), state())


def test_only_the_steps_that_are_named_are_changed(tmp_path):
    edit = Intervention(Zero(), "net.2", first_step=1, last_step=3)
    logger = ActivationLogger("net.2", statistics="zero_fraction", every_n_steps=1)
    fit(tmp_path, Toy(mlp()), batches(*[4] * 5), logger, edit)
    assert list(scalars(tmp_path)["activation_zero_fraction/net.2"].values()) == [0, 1, 1, 1, 0]


def test_validation_can_be_changed_alone(tmp_path):
    logger = ActivationLogger("net.2", stages=["train", "validate"], statistics="zero_fraction")
    edit = Intervention(Zero(), "net.2", stages="validate")
    fit(tmp_path, Toy(mlp()), batches(4, 4), logger, edit, limit_val_batches=1.0)
    found = scalars(tmp_path)
    assert set(found["activation_zero_fraction/net.2"].values()) == {0.0}
    assert set(found["validate_activation_zero_fraction/net.2"].values()) == {1.0}


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_an_evaluation_by_itself_can_be_changed(tmp_path, stage):
    logger = ActivationLogger("net.2", stages=stage)
    run = trainer(tmp_path, Intervention(Zero(), "net.2", stages=stage, first_step=9), logger, limit_val_batches=1.0)
    getattr(run, stage)(Toy(mlp()), loader(batches(4)))
    assert logger.readings[0].statistics["zero_fraction"] == 1


def test_what_is_changed_is_written_as_text_once(tmp_path):
    edit = Intervention(Clamp(max=1.0), ["net.0", "net.2"], first_step=1)
    fit(tmp_path, Toy(mlp()), batches(4, 4, 4), edit)
    (text,) = events(tmp_path).Tensors("interventions/output/text_summary")
    assert text.step == 1
    assert text.tensor_proto.string_val == [f"`{edit!r}`".encode()]


@compiles
@pytest.mark.parametrize("role", ["input", "grad_output"])
def test_a_compiled_model_is_changed_all_the_same(tmp_path, role):
    edited, plain = Toy(mlp()), Toy(mlp())
    edited.net = torch.compile(edited.net, backend="aot_eager")
    edited.net(batches(4)[0])
    for model in (edited, plain):
        fit(None, model, batches(4, 4), Intervention(Scale(-2.0), "net.2", role=role))
    assert all(torch.allclose(a, b) for a, b in zip(weights(edited), weights(plain), strict=True))


def test_a_module_that_is_never_called_is_an_error():
    class Skips(Toy):
        def training_step(self, batch):
            return self.net[2](self.net[0](batch)).square().mean()

    said = r"the edit of the output was never applied to 'net\.1': no call to the module passed a tensor"
    with pytest.raises(LookupError, match=said):
        fit(None, Skips(mlp()), batches(4), Intervention(Zero(), ["net.1", "net.2"]))


@pytest.mark.parametrize("role", ["output", "grad_output"])
def test_several_on_one_module_apply_in_the_order_of_the_list(tmp_path, role):
    make = GradientLogger if role.startswith("grad") else ActivationLogger
    logger = make("net.2", roles=role, statistics=["min", "max"], every_n_steps=1)
    edits = [Intervention(Zero(), "net.2", role=role), Intervention(lambda x: x + 1, "net.2", role=role)]
    fit(tmp_path, Toy(mlp()), batches(4), *edits, logger)
    assert logger.readings[0].statistics == {"min": 1.0, "max": 1.0}


def test_a_fit_in_which_nothing_was_to_be_changed_says_so():
    with pytest.warns(UserWarning, match="Intervention changed nothing in this fit: .*first_step=100"):
        fit(None, Toy(mlp()), batches(4), Intervention(Zero(), "net.2", first_step=100))


def test_a_fit_before_a_test_that_is_to_be_changed_says_nothing():
    fit(None, Toy(mlp()), batches(4), Intervention(Zero(), "net.2", stages="test"))
