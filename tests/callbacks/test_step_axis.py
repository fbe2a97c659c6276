"""Every point stands at the step that Lightning's own logger writes, in the steps that are due."""

import functools

import pytest
import torch
from toys import Toy, batches, fit, mlp, scalars

from hookboard import ActivationLogger, GradientLogger, ParameterLogger


class Manual(Toy):
    """One or two optimizers that the module steps itself."""

    def __init__(self, net, optimizers):
        super().__init__(net)
        self.automatic_optimization = False
        self.count = optimizers

    def configure_optimizers(self):
        parts = [self.net[0], self.net[2]] if self.count == 2 else [self.net]
        return [torch.optim.SGD(part.parameters(), lr=0.01) for part in parts]

    def training_step(self, batch):
        for optimizer in [self.optimizers()] if self.count == 1 else self.optimizers():
            optimizer.zero_grad()
            self.manual_backward(self.net(batch).square().mean())
            optimizer.step()
        self.log("loss", batch.mean())


def callbacks(every_n_steps=None):
    return [
        ActivationLogger(every_n_steps=every_n_steps),
        GradientLogger(roles=["grad_output", "parameter_grad"], every_n_steps=every_n_steps),
        ParameterLogger(every_n_steps=every_n_steps),
    ]


def assert_on_lightnings_axis(folder, model, data, **options):
    fit(folder, model, data, *callbacks(), **options)
    found = scalars(folder)
    expected = list(found.pop("loss"))
    found.pop("epoch")
    assert expected
    modules, parameters, statistics = 3, 4, 5
    assert len(found) == (modules + modules + parameters + parameters) * statistics
    for tag, points in found.items():
        assert list(points) == expected, tag
    return expected


@pytest.mark.parametrize(
    ("make", "count", "options", "expected"),
    [
        (Toy, 7, {"log_every_n_steps": 1, "max_epochs": 2}, [*range(14)]),
        (Toy, 7, {"log_every_n_steps": 3, "max_epochs": 2}, [2, 5, 8, 11]),
        (Toy, 10, {"log_every_n_steps": 2, "max_epochs": 2, "accumulate_grad_batches": 4}, [1, 3, 5]),
        (functools.partial(Manual, optimizers=1), 6, {"log_every_n_steps": 2}, [1, 3, 5]),
        (functools.partial(Manual, optimizers=2), 6, {"log_every_n_steps": 2}, [1, 3, 5]),
    ],
    ids=["automatic", "each third step", "accumulated", "by hand", "two optimizers by hand"],
)
def test_points_stand_where_lightnings_own_do_in_an_optimization(tmp_path, make, count, options, expected):
    assert assert_on_lightnings_axis(tmp_path, make(mlp()), batches(*[4] * count), **options) == expected


def test_every_n_steps_counts_optimizer_steps(tmp_path):
    fit(tmp_path, Toy(mlp()), batches(*[4] * 12), *callbacks(3), accumulate_grad_batches=2)
    assert list(scalars(tmp_path)["activation_mean/net.0"]) == [2, 5]


@pytest.mark.filterwarnings("ignore:`training_step` returned `None`")
def test_a_step_without_a_loss_logs_what_there_is(tmp_path):
    class SkipsSecond(Toy):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch)
            return None if batch_idx == 1 else loss

    fit(tmp_path, SkipsSecond(mlp()), batches(4, 4, 4), *callbacks(1))
    found = scalars(tmp_path)
    assert list(found["activation_mean/net.0"]) == [0, 1, 2]
    assert list(found["gradient_mean/net.0"]) == [0, 2]


def test_without_logging_steps_of_the_trainer_nothing_is_due(tmp_path):
    fit(tmp_path, Toy(mlp()), batches(4, 4), *callbacks(), log_every_n_steps=0)
    assert not [tag for tag in scalars(tmp_path) if "/" in tag]


def test_an_epoch_that_is_cut_short_leaves_no_tap_open(tmp_path):
    logger = ActivationLogger("net.0", every_n_steps=1)
    open_at_epoch_end = []

    class CutsShort(Toy):
        def on_train_batch_start(self, batch, batch_idx):
            return -1 if batch_idx == 1 else None

        def on_train_epoch_end(self):
            open_at_epoch_end.append(logger._live["train"].taps.active)

    fit(tmp_path, CutsShort(mlp()), batches(4, 4, 4), logger)
    assert open_at_epoch_end == [False]
