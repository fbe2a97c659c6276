"""No fault of ours reaches the training, at whatever point a loop calls us; others' callbacks may be of any class."""

import re
from unittest.mock import Mock

import pytest
import torch
from callbacks.heard import warnings_of
from lightning.pytorch import Callback, callbacks
from toys import Toy, batches, fit, hooked, mlp

from hookboard import HealthMonitor, Intervention, Scale

CALLED = [
    *("_start", "_prepare", "_attach", "_wants", "open_training", "open_batch", "_before_backward"),
    *("_after_backward", "_before_optimizer_step", "close_batch", "open_evaluation", "close_evaluation"),
    *("_end_training", "_end_all"),
]


def fails(*args, **named):
    raise RuntimeError("a fault of ours")


@pytest.mark.parametrize("method", CALLED)
def test_a_fault_at_any_point_is_said_once_and_ends_no_fit(tmp_path, monkeypatch, method):
    callback, model = HealthMonitor(every_n_steps=1), Toy(mlp())
    monkeypatch.setattr(callback, method, fails)
    (said,) = warnings_of(lambda: fit(tmp_path, model, batches(4, 4, 4), callback, limit_val_batches=1))
    assert re.search("HealthMonitor.*switched off.*a fault of ours", said, re.DOTALL)
    assert model.global_step == 3
    assert hooked(model) == []
    assert torch.overrides._get_current_function_mode_stack() == []


takes_any_class = pytest.mark.skipif(
    not hasattr(callbacks, "EMAWeightAveraging"), reason="Lightning before 2.6 refuses a proxy itself"
)


class Proxy:
    """Has all attributes of another callback, and is of no class of Lightning's."""

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        return getattr(self._inner, name)


@takes_any_class
@pytest.mark.parametrize("other", [Mock(spec=Callback, **{"state_dict.return_value": {}}), Proxy(Callback())])
def test_another_callback_may_be_of_any_class(other):
    run = fit(None, Toy(mlp()), batches(4, 4), other, HealthMonitor(every_n_steps=1))
    assert run.global_step == 2


@takes_any_class
@pytest.mark.parametrize("kind", [HealthMonitor, lambda: Intervention(Scale(0.5), "net.0")])
def test_ours_may_be_given_behind_another_object(tmp_path, kind):
    run = fit(tmp_path, Toy(mlp()), batches(4, 4), Proxy(kind()))
    assert run.global_step == 2
