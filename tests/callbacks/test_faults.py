"""A fault of ours or of a logger is said once; training goes on, and so does what else is logged."""

import warnings

import pytest
import torch
from callbacks.heard import warnings_of
from toys import Toy, batches, fit, mlp, scalars

from hookboard import ActivationLogger, GradientLogger, HealthMonitor, HookboardWarning, Rule, Statistic


def fails_on_odd_widths(x):
    if x.shape[-1] % 2:
        raise ValueError("an odd width")
    return x.sum()


def test_a_statistic_that_raises_switches_its_site_off(tmp_path):
    mine = Statistic("mine", fails_on_odd_widths, merge="sum")
    logger = ActivationLogger(every_n_steps=1, statistics=["mean", mine])
    first, gap = warnings_of(lambda: fit(tmp_path, Toy(mlp()), batches(4, 4, 4), logger))
    assert "output of 'net.2' is switched off" in first
    assert "ValueError: an odd width" in first
    assert "net.2: output: switched off (see the warning above)" in gap
    found = scalars(tmp_path)
    assert list(found["activation_mine/net.0"]) == [0, 1, 2]
    assert "activation_mean/net.2" not in found


@pytest.mark.parametrize(
    ("watching", "said"),
    [
        (ActivationLogger(statistics=Statistic("mine", fails_on_odd_widths)), "output of 'net.2' is switched off"),
        (GradientLogger(statistics=Statistic("mine", fails_on_odd_widths)), "grad_output of 'net.2' is switched off"),
        (HealthMonitor(rules=Rule("odd", lambda run: [1 / 0])), "HealthMonitor's rule 'odd' is switched off"),
    ],
    ids=["in a forward hook", "in a gradient hook", "in a job"],
)
def test_training_goes_on_where_a_filter_makes_errors_of_warnings(tmp_path, watching, said):
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("error", HookboardWarning)
        run = fit(tmp_path, Toy(mlp()), batches(4, 4, 4), watching)
    assert run.global_step == 3
    assert any(said in str(warning.message) for warning in shown)


def test_a_tensor_under_vmap_switches_the_site_off_alone(tmp_path):
    class Mapped(Toy):
        def training_step(self, batch):
            torch.func.vmap(self.net[0])(batch)
            return super().training_step(batch)

    said = warnings_of(lambda: fit(tmp_path, Mapped(mlp()), batches(4, 4), ActivationLogger(every_n_steps=1)))
    assert "output of 'net.0' is switched off" in said[0]
    assert list(scalars(tmp_path)["activation_mean/net.2"]) == [0, 1]
