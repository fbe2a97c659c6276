"""Callbacks that average the weights: their copy carries no hook, and the numbers stay true."""

import pytest
from lightning.pytorch.callbacks import LambdaCallback, StochasticWeightAveraging
from oracle import assert_true
from torch import nn
from toys import EachStep, Raw, Toy, batches, fit, hooked, mlp, moving_average, scalars

from hookboard import ActivationLogger, GradientLogger, HealthMonitor


def swa():
    return StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=1)


def ema():
    return moving_average(0.5)


@pytest.mark.parametrize("make", [swa, ema])
@pytest.mark.parametrize("position", ["before", "behind"])
def test_the_averaged_copy_carries_no_hook_and_the_numbers_are_those_of_the_model(tmp_path, make, position):
    callbacks = [ActivationLogger(), GradientLogger()]
    averaging, hooks = make(), []
    raw, kept = Raw(), [EachStep(callback) for callback in callbacks]
    copies = LambdaCallback(on_train_batch_end=lambda *args: hooks.append(hooked(averaging._average_model)))
    in_order = [averaging, *callbacks] if position == "before" else [*callbacks, averaging]
    fit(tmp_path, Toy(mlp()), batches(*[4] * 3), *in_order, raw, *kept, copies, max_epochs=3)
    assert hooks == [[]] * 9
    for one in kept:
        assert len(one.readings) == 9
        for readings, tensors in zip(one.readings, raw.steps, strict=False):
            assert len(readings) == 3
            for reading in readings:
                assert_true(reading.statistics, tensors[reading.site.role, reading.site.name])


def test_validation_under_an_averaged_model_shows_what_the_average_gives(tmp_path):
    class Scales(Toy):
        def validation_step(self, batch):
            self.log("val_mean", self.net(batch).mean())

    callback = ActivationLogger("net.2", stages="validate", statistics="mean")
    fit(tmp_path, Scales(mlp()), batches(6, 6), callback, ema(), limit_val_batches=1.0, max_epochs=2)
    found = scalars(tmp_path)
    assert found["validate_activation_mean/net.2"] == pytest.approx(found["val_mean"])


def test_the_epoch_that_swa_spends_on_batch_norm_is_no_fault(tmp_path):
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Linear(8, 3))
    fit(tmp_path, Toy(net), batches(*[4] * 3), ActivationLogger(), GradientLogger(), swa(), max_epochs=3)
    found = scalars(tmp_path)
    assert list(found["gradient_std/net.1"]) == list(range(9))
    assert set(found["activation_std/net.1"]) >= set(range(9))


@pytest.mark.parametrize("averages", [True, False])
def test_a_validation_that_runs_with_an_average_is_known_to_have_other_weights(tmp_path, averages):
    monitor = HealthMonitor(every_n_steps=1)
    callbacks = [monitor, *([ema()] if averages else [])]
    fit(tmp_path, Toy(mlp()), batches(*[6] * 4), *callbacks, limit_val_batches=1.0, max_epochs=2)
    assert [one.has_other_weights for one in monitor._run.comparisons] == [averages] * 2
