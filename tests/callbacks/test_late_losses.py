"""Losses that are read at the next look: what is kept of them, and that a NaN among them is told."""

import math

import pytest
import torch
from pretended import CUDA, Pretended
from toys import RecordsLoss, batches, fit, mlp

from hookboard import HealthMonitor
from hookboard.callbacks.loss_meter import LossMeter, summed


def spoiled_at(*steps):
    data = batches(*[8] * 12)
    for step in steps:
        data[step][0] = math.nan
    return data


class Skips(RecordsLoss):
    """Makes no step where the loss is not finite, so that no weight is ever spoiled."""

    def on_before_optimizer_step(self, optimizer):
        if not self.losses[-1].isfinite():
            optimizer.zero_grad()


def told(monitor):
    return [(verdict.since, verdict.batch_idx, verdict.severity) for verdict in monitor.verdicts]


@pytest.mark.parametrize("every", [5, 100], ids=["at the next look", "at the end"])
@pytest.mark.parametrize("at", [3, 11])
def test_the_step_in_which_a_loss_was_not_finite_is_told_though_no_look_saw_it(every, at):
    monitor = HealthMonitor(nonfinite="late", rules="nonfinite", every_n_steps=every)
    fit(None, Skips(mlp()), spoiled_at(at), monitor)
    assert told(monitor) == [(at, at, "alarm")]
    assert "The loss of step" in monitor.verdicts[0].evidence
    assert "is nan" in monitor.verdicts[0].evidence


def test_only_the_first_loss_that_is_not_finite_is_told():
    monitor = HealthMonitor(nonfinite="late", rules="nonfinite", every_n_steps=2)
    fit(None, Skips(mlp()), spoiled_at(3, 4, 9), monitor)
    assert told(monitor) == [(3, 3, "alarm")]


def test_a_nan_that_the_host_reads_late_ends_the_fit_at_the_next_look():
    model = Skips(mlp())
    fit(None, model, spoiled_at(3), HealthMonitor(nonfinite="late", stop_on="nonfinite", every_n_steps=5))
    assert model.global_step == 5


@pytest.fixture
def device():
    """Tensors on it cannot be read without being asked for."""
    device = Pretended()
    with device.modes():
        yield device


def read(meter):
    parts, numbers = meter.take()
    return [(loss.step, loss.value) for loss in summed(parts, numbers.tolist())]


def test_losses_at_one_address_are_all_known(device):
    """As a replayed CUDA graph writes them, of which the version counter knows nothing."""
    meter, loss = LossMeter(), torch.tensor(0.0, device=CUDA)
    for step in range(3):
        loss.data.fill_(step)
        meter.add(step, step, loss)
    meter.add(2, 2, loss)  # of a second backward pass from the same loss
    assert read(meter) == [(0, 0.0), (1, 1.0), (2, 4.0)]


@pytest.mark.parametrize(("dtype", "known"), [(torch.float16, []), (torch.float32, [(0, math.inf)])])
def test_a_float16_loss_that_overflows_when_it_is_scaled_is_not_known(dtype, known):
    meter = LossMeter()
    meter.add(0, 0, torch.tensor(math.inf, dtype=dtype), scale=torch.tensor(65536.0))
    assert read(meter) == known
