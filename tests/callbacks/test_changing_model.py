"""Modules that are replaced during a fit, weights that are pruned or computed, parameters of the LightningModule."""

import pytest
import torch
from callbacks.heard import warnings_of
from callbacks.user_program import Does
from oracle import assert_true
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune
from toys import EachStep, Toy, batches, fit, hooked, images, mlp, scalars

from hookboard import ActivationLogger, GradientLogger, HealthMonitor, Intervention, KernelLogger, ParameterLogger, Zero
from hookboard.measure.statistics import FORMULAS


def new_head(model):
    torch.manual_seed(9)
    model.net[2] = nn.Linear(8, 5)
    model.trainer.optimizers = [torch.optim.SGD(model.parameters(), lr=0.01)]


def of(logger, role):
    return {r.site.name: r.statistics for r in logger.readings if r.site.role == role}


class ReplacesAtEpoch(Toy):
    """Has another head from the second epoch on."""

    def __init__(self, change=new_head, *layers):
        super().__init__(nn.Sequential(*layers) if layers else mlp())
        self.change = change

    def on_train_epoch_start(self):
        if self.current_epoch == 1:
            self.change(self)


def test_a_module_that_is_replaced_is_let_go_and_the_new_one_watched_from_the_next_due_step_on(tmp_path):
    logger = ActivationLogger("net.2", statistics=tuple(FORMULAS))
    kept, model = EachStep(logger), ReplacesAtEpoch()
    outputs, counts, old = [], [], model.net[2]
    model.on_train_batch_end = lambda *args: counts.append(len(old._forward_hooks))
    model.net.register_forward_hook(lambda m, a, output: outputs.append(output.detach().clone()))
    (said,) = warnings_of(lambda: fit(tmp_path, model, batches(4, 4, 4), logger, kept, max_epochs=2))
    assert "ActivationLogger: the model changed during the fit and is watched as it is now (shown once)" in said
    assert len(kept.readings) == 6
    for (reading,), output in zip(kept.readings, outputs, strict=True):
        assert_true(reading.statistics, [output])
    assert hooked(model) == ["net"], "the hook of this test"
    assert counts == [1] * 3 + [0] * 3


class Comparable(nn.Linear):
    """A layer that equals others of its size."""

    def __eq__(self, other):
        return isinstance(other, Comparable) and self.weight.shape == other.weight.shape

    __hash__ = nn.Module.__hash__


def test_a_replaced_module_is_followed_though_it_equals_the_new_one(tmp_path):
    def new_layer(model):
        model.net[0] = Comparable(4, 3)

    logger, model = ParameterLogger("net.0", statistics="mean"), ReplacesAtEpoch(new_layer, Comparable(4, 3))
    (said,) = warnings_of(lambda: fit(tmp_path, model, batches(4, 4), logger, max_epochs=2))
    assert "the model changed during the fit" in said
    weight = of(logger, "parameter")["net.0.weight"]
    assert weight["mean"] == pytest.approx(model.net[0].weight.double().mean().item(), rel=1e-6)


def test_gradients_and_parameters_follow_too(tmp_path):
    gradients = GradientLogger("net.2", roles=["grad_output", "parameter_grad"], statistics="l2")
    parameters = ParameterLogger("net.2")
    model = ReplacesAtEpoch()
    said = warnings_of(lambda: fit(tmp_path, model, batches(4, 4), gradients, parameters, max_epochs=2))
    assert len(said) == 2
    head, moved = model.net[2], of(parameters, "parameter_update")
    assert of(gradients, "parameter_grad")["net.2.weight"]["l2"] == pytest.approx(head.weight.grad.norm().item())
    assert of(parameters, "parameter")["net.2.weight"]["mean"] == pytest.approx(head.weight.mean().item())
    assert moved["net.2.bias"]["update_norm"] == pytest.approx(0.01 * head.bias.grad.norm().item(), rel=1e-4)
    counts = {reading.site.name: reading.moments.count for reading in gradients.readings}
    assert counts == {"net.2": 4 * 5, "net.2.weight": 40, "net.2.bias": 5}


def test_a_parameter_that_is_replaced_in_its_module_is_watched_from_then_on(tmp_path):
    def new_weight(model):
        model.net[2].weight = nn.Parameter(torch.ones(3, 8))
        model.trainer.optimizers = [torch.optim.SGD(model.parameters(), lr=0.01)]

    logger, model = ParameterLogger("net.2", statistics=["mean", "update_norm"]), ReplacesAtEpoch(new_weight)
    (said,) = warnings_of(lambda: fit(tmp_path, model, batches(4, 4), logger, max_epochs=2))
    assert "the model changed" in said
    weight = model.net[2].weight
    assert of(logger, "parameter")["net.2.weight"]["mean"] == pytest.approx(weight.mean().item())
    norm = 0.01 * weight.grad.norm().item()
    assert of(logger, "parameter_update")["net.2.weight"]["update_norm"] == pytest.approx(norm, rel=1e-4)


def test_a_callback_that_names_a_module_that_is_gone_ends_and_says_which(tmp_path):
    def removes(model):
        model.net = model.net[:2]

    logger = ActivationLogger(["net.0", "net.2"], statistics="std")
    (said,) = warnings_of(lambda: fit(tmp_path, ReplacesAtEpoch(removes), batches(4, 4), logger, max_epochs=2))
    assert "ActivationLogger is switched off" in said
    assert "unknown module 'net.2'" in said
    assert {name: list(steps) for name, steps in scalars(tmp_path).items() if "activation" in name} == {
        f"activation_std/{name}": [0, 1] for name in ("net.0", "net.2")
    }


@pytest.mark.parametrize("stages", ["validate", ["train", "validate"]])
def test_an_evaluation_within_the_fit_follows_too_and_it_is_said_once(tmp_path, stages):
    logger = ActivationLogger("net.2", stages=stages, statistics="std")
    options = {"max_epochs": 2, "limit_val_batches": 1.0, "num_sanity_val_steps": 0}
    said = warnings_of(lambda: fit(tmp_path, ReplacesAtEpoch(), batches(4), logger, **options))
    assert len(said) == 1
    assert logger.readings[0].moments.count == 4 * 5


def test_an_edit_goes_over_to_the_new_module(tmp_path):
    logger = ActivationLogger("net.2", statistics="zero_fraction")
    kept = EachStep(logger)
    watching = Intervention(Zero(), "net.2"), logger, kept
    said = warnings_of(lambda: fit(tmp_path, ReplacesAtEpoch(), batches(4, 4), *watching, max_epochs=2))
    assert len(said) == 2
    assert [r.statistics["zero_fraction"] for (r,) in kept.readings] == [1.0] * 4


def test_of_a_pruned_weight_the_original_is_logged_under_its_own_name(tmp_path):
    def prunes(model):
        prune.random_unstructured(model.net[0], "weight", amount=0.5)

    logger, model = ParameterLogger("net.0", statistics=tuple(FORMULAS)), ReplacesAtEpoch(prunes)
    gradients = GradientLogger("net.0", roles="parameter_grad", statistics="l2")
    said = warnings_of(lambda: fit(tmp_path, model, batches(4), logger, gradients, max_epochs=2))
    assert len(said) == 2
    assert all("the model changed" in text for text in said)
    found = of(logger, "parameter")
    assert found.keys() == {"net.0.weight_orig", "net.0.bias"}
    assert_true(found["net.0.weight_orig"], [model.net[0].weight_orig])
    assert list(scalars(tmp_path)["parameter_gradient_l2/net.0.weight"]) == [0]
    assert list(scalars(tmp_path)["parameter_gradient_l2/net.0.weight_orig"]) == [1]


class Scales(Toy):
    def __init__(self):
        super().__init__(mlp())
        self.scale = nn.Parameter(torch.tensor([2.0, 3.0, 4.0]))

    def training_step(self, batch):
        return (self.net(batch) * self.scale).square().mean()


@pytest.mark.parametrize("modules", [None, "", "**", ["net.0", ""], "re:.*", "!net.0"])
def test_parameters_of_the_lightning_module_itself_are_watched(tmp_path, modules):
    gradients = GradientLogger(modules, roles="parameter_grad", statistics="l2")
    parameters, model = ParameterLogger(modules), Scales()
    fit(tmp_path, model, batches(4, 4), gradients, parameters)
    assert of(gradients, "parameter_grad")["scale"]["l2"] == pytest.approx(model.scale.grad.norm().item())
    assert of(parameters, "parameter")["scale"]["mean"] == pytest.approx(model.scale.mean().item())
    assert list(scalars(tmp_path)["parameter_update_norm/scale"]) == [0, 1]


@pytest.mark.parametrize("modules", [["*", "net.0"], "net.*", ["**", "!"]])
def test_patterns_that_do_not_mean_the_root_leave_its_parameters_out(tmp_path, modules):
    logger = ParameterLogger(modules)
    fit(tmp_path, Scales(), batches(4), logger)
    assert "scale" not in of(logger, "parameter")


# Weights that a parametrization computes: none is computed for hookboard.


PICTURES = [batch.view(2, 3, 8, 8) for batch in batches(2, 2, 2, 2, width=192)]


def convolutions():
    return Toy(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3)))


def test_a_parametrization_is_not_called_for_what_is_read(tmp_path):
    def calls_beside(*callbacks):
        calls, model = [], convolutions()
        counts = Does(lambda weight: calls.append(1) or weight.abs())
        parametrize.register_parametrization(model.net[0], "weight", counts, unsafe=True)
        fit(tmp_path, model, PICTURES, *callbacks)
        return len(calls)

    readers = [kind(every_n_steps=1) for kind in (ParameterLogger, HealthMonitor, KernelLogger)]
    assert calls_beside(*readers) == calls_beside()


@pytest.mark.parametrize("wrap", [parametrizations.spectral_norm, parametrizations.weight_norm])
def test_the_originals_are_logged_and_kernels_are_left_out(tmp_path, wrap, lines):
    model, logger = convolutions(), ParameterLogger(every_n_steps=1)
    wrap(model.net[0])
    fit(tmp_path, model, PICTURES, logger, KernelLogger(every_n_steps=1))
    names = {reading.site.name for reading in logger.readings if "0.param" in reading.site.name}
    assert names == {name for name, _ in model.named_parameters() if "parametrizations" in name}
    assert "net.0.weight" not in {reading.site.name for reading in logger.readings}
    assert list(images(tmp_path)) == ["kernels/net.2"]
    assert "KernelLogger leaves out net.0: their weights are pruned or parametrized." in "".join(lines)


def test_what_a_parametrization_computes_with_belongs_to_the_layer_that_uses_it():
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
    nn.init.constant_(model[0].bias, -10.0)
    parametrizations.weight_norm(model[0])
    monitor = HealthMonitor(every_n_steps=1)
    fit(None, Toy(model), [torch.randn(16, 8) for _ in range(12)], monitor)
    assert [verdict.module for verdict in monitor.verdicts if verdict.rule == "dead_units"] == ["net.0"]
    assert {layer.name for layer in monitor._run.layers} == {"net.0", "net.1", "net.2"}
