"""What cannot work is said before the first batch, with what would."""

import pytest
from torch import nn
from toys import Toy, batches, fit, mlp

from hookboard import ActivationLogger, GradientLogger, ParameterLogger

EVERY = [ActivationLogger, GradientLogger, ParameterLogger]


@pytest.mark.parametrize("logger", EVERY)
@pytest.mark.parametrize("every_n_steps", [0, -1, 2.5, True, "10"])
def test_a_cadence_that_is_no_positive_count(logger, every_n_steps):
    with pytest.raises(ValueError, match=f"every_n_steps={every_n_steps!r}: give a whole number"):
        logger(every_n_steps=every_n_steps)


@pytest.mark.parametrize("logger", EVERY)
@pytest.mark.parametrize("name", ["histogram", "sync_dist"])
def test_what_is_neither_true_nor_false(logger, name):
    with pytest.raises(ValueError, match=f"{name}='yes': give True or False"):
        logger(**{name: "yes"})


@pytest.mark.parametrize("logger", EVERY)
def test_an_unknown_statistic(logger):
    with pytest.raises(
        ValueError, match=r"unknown statistic 'zero_fractoin'; did you mean 'zero_fraction'.*Valid: mean"
    ):
        logger(statistics=["mean", "zero_fractoin"])


def test_an_unknown_statistic_of_updates():
    with pytest.raises(ValueError, match="'update_norms'; did you mean 'update_norm'"):
        ParameterLogger(statistics="update_norms")
    with pytest.raises(ValueError, match="unknown statistic 'update_norm'"):
        ActivationLogger(statistics="update_norm")


@pytest.mark.parametrize(
    ("logger", "roles", "message"),
    [
        (ActivationLogger, "outputs", "unknown role 'outputs'; did you mean 'output'.*Valid: output, input"),
        (ActivationLogger, ["grad_output"], "unknown role 'grad_output'"),
        (GradientLogger, ["grad_ouput"], "did you mean 'grad_output'"),
        (GradientLogger, [], r"roles=\[\]: give one or more of: grad_output, grad_input"),
    ],
)
def test_an_unknown_role(logger, roles, message):
    with pytest.raises(ValueError, match=message):
        logger(roles=roles)


@pytest.mark.parametrize("logger", EVERY)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"modules": "net.0."}, r"'net\.0\.' matches no module; the closest are 'net\.0'"),
        ({"modules": ["net.*", "nett.0"]}, r"'nett\.0' matches no module; the closest are 'net\.0'"),
        ({"types": "Linaer"}, "no module is a 'Linaer'; the closest are 'Linear'"),
        ({"types": nn.Conv2d}, "no module is a 'Conv2d'"),
    ],
)
def test_a_pattern_or_type_that_matches_nothing(logger, options, message):
    called = []

    class Watches(Toy):
        def training_step(self, batch):
            called.append(batch)
            return super().training_step(batch)

    with pytest.raises(ValueError, match=message):
        fit(None, Watches(mlp()), batches(4), logger(**options))
    assert not called


@pytest.mark.parametrize(
    "logger",
    [ParameterLogger("net.1"), GradientLogger("net.1", roles="parameter_grad"), ParameterLogger(types="ReLU")],
    ids=["ParameterLogger", "GradientLogger", "type"],
)
def test_parameters_of_a_module_that_has_none(logger):
    with pytest.raises(ValueError, match=r"net\.1 \(ReLU\), but none of them has a parameter of its own"):
        fit(None, Toy(mlp()), batches(4), logger)
