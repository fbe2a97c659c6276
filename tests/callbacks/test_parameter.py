import math

import pytest
import torch
from oracle import assert_true
from torch import nn
from toys import Toy, batches, fit, mlp, scalars

from hookboard import ParameterLogger, Statistic
from hookboard.measure.statistics import FORMULAS


class Keeps(Toy):
    """The parameters before and after every step."""

    def __init__(self, net, optimizer=torch.optim.AdamW, rate=0.1):
        super().__init__(net)
        self.make_optimizer, self.rate = optimizer, rate
        self.kept = [self.copies()]

    def copies(self):
        return {name: p.detach().clone() for name, p in self.named_parameters()}

    def on_train_batch_end(self, *args):
        self.kept.append(self.copies())

    def configure_optimizers(self):
        return self.make_optimizer(self.parameters(), lr=self.rate)


def readings(logger, role):
    return {reading.site.name: reading for reading in logger.readings if reading.site.role == role}


def test_statistics_are_those_of_the_parameters_after_the_step(tmp_path):
    model = Keeps(mlp())
    logger = ParameterLogger(every_n_steps=1, statistics=tuple(FORMULAS))
    fit(tmp_path, model, batches(4, 4), logger)
    measured = readings(logger, "parameter")
    assert measured.keys() == model.kept[-1].keys()
    for name, true in model.kept[-1].items():
        assert_true(measured[name].statistics, [true])


def test_half_precision_updates_are_not_rounded_away(tmp_path):
    model = Keeps(mlp().bfloat16())
    logger = ParameterLogger("net.0", every_n_steps=1, statistics="update_norm")
    fit(tmp_path, model, [b.bfloat16() for b in batches(4)], logger)
    before, after = model.kept
    for name, reading in readings(logger, "parameter_update").items():
        assert reading.statistics["update_norm"] == pytest.approx(
            (after[name].double() - before[name].double()).norm().item(), rel=1e-6
        )


def test_an_update_from_zero_has_an_infinite_ratio(tmp_path):
    net = nn.Linear(4, 1)
    nn.init.zeros_(net.bias)
    logger = ParameterLogger(every_n_steps=1)
    fit(tmp_path, Keeps(net), batches(4), logger)
    assert math.isinf(readings(logger, "parameter_update")["net.bias"].statistics["update_ratio"])


def test_shared_parameters_appear_once(tmp_path):
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    logger = ParameterLogger(every_n_steps=1)
    fit(tmp_path, Toy(nn.Sequential(first, second)), batches(4), logger)
    assert readings(logger, "parameter").keys() == {"net.0.weight", "net.0.bias", "net.1.bias"}


def test_without_updates_no_parameter_is_copied(tmp_path):
    logger = ParameterLogger(every_n_steps=1, statistics=["l2"])
    fit(tmp_path, Toy(mlp()), batches(4), logger)
    assert not readings(logger, "parameter_update")
    assert set(scalars(tmp_path)) == {f"parameter_l2/net.{i}.{p}" for i in (0, 2) for p in ("weight", "bias")} | {
        "loss",
        "epoch",
    }


def test_a_statistic_of_ones_own_is_not_shown_the_copies(tmp_path):
    shown = []
    mine = Statistic("mine", lambda x: shown.append(x.shape) or x.sum(), merge="sum")
    logger = ParameterLogger("net.0", every_n_steps=1, statistics=[mine, "update_norm"], histogram=True)
    fit(tmp_path, Toy(mlp()), batches(4), logger)
    assert len(shown) == 2


@pytest.mark.parametrize("rate", [0.1, 0.0])
def test_the_unchanged_share_is_that_of_equal_elements_before_and_after(tmp_path, rate):
    model = Keeps(mlp().bfloat16(), torch.optim.SGD, rate)
    logger = ParameterLogger(statistics="unchanged_fraction")
    fit(tmp_path, model, [b.bfloat16() for b in batches(4)], logger)
    before, after = model.kept
    found = {name: reading.statistics for name, reading in readings(logger, "parameter_update").items()}
    for name, values in found.items():
        assert values == {"unchanged_fraction": (before[name] == after[name]).double().mean().item()}
    assert any(0 < values["unchanged_fraction"] < 1 for values in found.values()) == (rate > 0)
