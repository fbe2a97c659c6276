"""`HealthMonitor` leaves the run as it is, leaves nothing behind, and stops for no fault of its own."""

import random
import re
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from callbacks.heard import alarms_of, looks_of, warnings_of
from lightning.pytorch import Callback, callbacks
from lightning.pytorch.plugins.precision import MixedPrecision
from oracle import rows_of_channels
from torch import nn
from toys import ALWAYS, Toy, batches, fit, hooked, mlp

from hookboard import HealthMonitor, HookboardWarning
from hookboard.callbacks.loss_meter import LossMeter, summed


class Messy(Toy):
    """Its state moves at each step: dropout, averages, momentum, random numbers of numpy and Python."""

    def __init__(self):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Linear(8, 3))
        super().__init__(net)
        self.losses = []

    def training_step(self, batch):
        loss = super().training_step(batch) * random.random() + float(np.random.rand())
        self.losses.append(loss.detach().clone())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def trained(folder, *callbacks, **options):
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    model = Messy()
    run = fit(folder, model, batches(*[8] * 6), *callbacks, **options)
    tensors = [*model.state_dict().values(), *model.losses, torch.get_rng_state()]
    tensors += [value for held in run.optimizers[0].state.values() for value in held.values()]
    drawn = random.getstate(), np.random.get_state()[1].tolist()
    return [tensor.tolist() for tensor in tensors], drawn, run.global_step, hooked(model)


@pytest.mark.parametrize("options", [{}, {"nonfinite": "late"}, {"every_n_steps": 4}], ids=str)
def test_the_run_is_the_same_bit_for_bit(tmp_path, options):
    loops = {"limit_val_batches": 2, "val_check_interval": 2}
    mine = trained(tmp_path / "mine", HealthMonitor(**{"every_n_steps": 1, **options}), **loops)
    assert mine == trained(tmp_path / "bare", **loops)


CALLED = [
    *("_start", "_prepare", "_attach", "_wants", "open_training", "open_batch", "_before_backward"),
    *("_after_backward", "_before_optimizer_step", "close_batch", "open_evaluation", "close_evaluation"),
    *("_end_training", "_end_all"),
]


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("bare"), limit_val_batches=1)


@pytest.mark.parametrize("method", CALLED)
def test_a_fault_at_any_point_is_said_once_and_leaves_the_run(bare, tmp_path, monkeypatch, method):
    def fails(*args, **named):
        raise RuntimeError("a fault of ours")

    callback, found = HealthMonitor(every_n_steps=1), []
    monkeypatch.setattr(callback, method, fails)
    (said,) = warnings_of(lambda: found.append(trained(tmp_path, callback, limit_val_batches=1)))
    assert re.search("HealthMonitor.*switched off.*a fault of ours", said, re.DOTALL)
    assert found == [bare]
    assert torch.overrides._get_current_function_mode_stack() == []


def test_after_a_fault_what_was_seen_before_is_still_told(monkeypatch, lines):
    take = LossMeter.take

    def broken(meter):
        calls.append(meter)
        if len(calls) == 3:
            raise RuntimeError("broken on purpose")
        return take(meter)

    calls = []
    monkeypatch.setattr(LossMeter, "take", broken)
    monitor = HealthMonitor(rules=ALWAYS, window=1)
    with pytest.warns(HookboardWarning, match="broken on purpose"):
        fit(None, Messy(), batches(*[8] * 6), monitor)
    assert len(monitor.verdicts) == 1
    assert "1 alarm in 5 layers, measured 2 times" in lines[-1]


@pytest.mark.parametrize("has_logger", [True, False])
def test_without_a_logger_the_last_line_says_where_the_verdicts_are(has_logger, tmp_path, lines):
    fit(tmp_path if has_logger else None, Messy(), batches(*[8] * 3), HealthMonitor(rules=ALWAYS, window=1))
    hint = "  There is no logger, so nothing was written; the HealthMonitor of this run has the verdicts."
    assert (lines[-1].splitlines()[-1] == hint) == (not has_logger)


@pytest.mark.filterwarnings("ignore:hookboard. HealthMonitor. the model changed during the fit")
def test_layers_that_are_replaced_added_and_removed_are_judged_as_they_are_now():
    class Changes(Messy):
        def on_train_batch_start(self, batch, batch_idx):
            if batch_idx == 2:
                self.net[4] = nn.Linear(8, 5)
                self.net[3] = nn.Identity()
                self.net.append(nn.Tanh())
            if batch_idx == 4:
                del self.net[5]

    def keep(run):
        recent = run.recent("activation_rms")
        return {layer.name: (layer, sizes) for layer, sizes in zip(run.layers, recent, strict=True)}

    seen = looks_of(Changes(), batches(*[8] * 6), keep=keep)
    assert [seen[step]["net.4"][0].shapes["net.4.weight"] for step in (0, 3)] == [(3, 8), (5, 8)]
    assert [seen[3][name][0].type for name in ("net.3", "net.5")] == ["Identity", "Tanh"]
    assert "net.5" not in seen[5]
    # It was replaced when the third batch had begun, and what the old one gave is no history of it.
    assert np.isfinite(seen[5]["net.4"][1]).tolist() == [False] * 3 + [True] * 3


class Sparse(Toy):
    def __init__(self):
        super().__init__(nn.Embedding(1000, 200, sparse=True))
        self.kept = []

    def on_before_optimizer_step(self, optimizer):
        self.kept.append(self.net.weight.grad.to_dense())

    def training_step(self, batch):
        return self.net(batch.abs().mul(300).long().clamp(max=999)).square().mean()


def test_gradient_and_weight_of_a_large_sparse_embedding_are_of_the_same_units():
    model = Sparse()
    looks = looks_of(model, batches(64, 64))
    for look, grad in zip(looks, model.kept, strict=True):
        rows = look.of("net.weight", "parameter_grad").channels
        true = rows_of_channels([grad[::4]], 0)
        np.testing.assert_allclose(rows[:, [0, 1, 2, 4]], true[:, [0, 1, 2, 4]], rtol=1e-6)
        assert look.of("net.weight", "parameter_before").channels.shape == (250, 10)
        assert 0 < (rows[:, 4] < 200).sum() < 250


class Vector(Messy):
    """Its backward passes start from many numbers."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch):
        optimizer, errors = self.optimizers(), self.net(batch).square().mean(1)
        optimizer.zero_grad()
        self.manual_backward(errors, gradient=torch.ones_like(errors) / len(errors))
        optimizer.step()


def test_a_backward_pass_from_many_numbers_is_no_alarm():
    assert alarms_of(Vector(), batches(*[16] * 40)) == []


def test_a_layer_that_is_frozen_during_the_fit_is_no_alarm():
    class Freezes(Messy):
        def on_train_batch_start(self, batch, batch_idx):
            if batch_idx == 5:
                self.net[0].requires_grad_(False)

    monitor = HealthMonitor()
    fit(None, Freezes(), batches(*[16] * 20), monitor)
    assert [one for one in monitor.verdicts if one.rule in ("no_gradient", "not_updated")] == []


def test_a_step_that_overflowed_is_no_alarm():
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60, backoff_factor=2.0**-12, growth_interval=1000)
    plugin = MixedPrecision("16-mixed", "cpu", scaler=scaler)
    assert alarms_of(Toy(mlp()), batches(*[16] * 12), plugins=plugin) == []


@pytest.mark.parametrize("sizes", [[0, 0, 0, 0], [4, 0, 4, 0, 4]], ids=str)
@pytest.mark.parametrize("nonfinite", ["exact", "late"])
def test_empty_batches_are_no_fault(sizes, nonfinite):
    monitor = HealthMonitor(nonfinite=nonfinite)
    fit(None, Toy(mlp(), loss=lambda y: y.square().sum()), batches(*sizes), monitor)
    assert [verdict for verdict in monitor.verdicts if verdict.severity == "alarm"] == []


class Twice(nn.Module):
    """Calls a module twice and another behind it, in an order that changes from step to step."""

    def __init__(self):
        super().__init__()
        self.shared, self.other = nn.Linear(4, 4), nn.Linear(4, 4)
        self.same, self.calls = self.shared, 0

    def forward(self, x):
        self.calls += 1
        first, second = (self.shared, self.other) if self.calls % 2 else (self.other, self.shared)
        return self.same(second(first(x)))


def test_modules_that_are_shared_called_twice_and_in_another_order_have_the_rows_of_all_calls():
    looks = looks_of(Toy(Twice()), batches(*[5] * 4))
    assert len(looks) == 4
    for look in looks:
        assert look.of("net.shared", "output").moments.count == 2 * 5 * 4
        assert look.of("net.other", "output").moments.count == 5 * 4


def test_units_that_are_copies_of_each_other_are_said_in_a_real_training():
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    for layer in (net[0], net[2]):
        nn.init.constant_(layer.weight, 0.3)
        nn.init.zeros_(layer.bias)
    assert ("symmetric_units", "net.0") in {(one.rule, one.module) for one in alarms_of(Toy(net), batches(*[16] * 6))}


def test_a_complex_loss_is_left_out():
    meter = LossMeter()
    meter.add(0, 0, torch.tensor(1.0 + 2.0j))
    meter.add(0, 0, torch.tensor(3.0))
    parts, numbers = meter.take()
    assert [loss.value for loss in summed(parts, numbers.tolist())] == [3.0]


class Proxy:
    """Has all attributes of another callback, and is of no class of Lightning's."""

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        return getattr(self._inner, name)


@pytest.mark.skipif(not hasattr(callbacks, "EMAWeightAveraging"), reason="Lightning before 2.6 refuses a proxy itself")
@pytest.mark.parametrize("other", [Mock(spec=Callback, **{"state_dict.return_value": {}}), Proxy(HealthMonitor())])
def test_another_callback_and_ours_behind_it_may_be_of_any_class(other):
    run = fit(None, Toy(mlp()), batches(4, 4), other, HealthMonitor(every_n_steps=1))
    assert run.global_step == 2
