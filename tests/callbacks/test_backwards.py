"""Steps with more than one backward pass."""

import pytest
import torch
from oracle import assert_true
from toys import Toy, batches, fit, mlp

from hookboard import GradientLogger
from hookboard.measure.statistics import FORMULAS


class TwoBackwards(Toy):
    automatic_optimization = False

    def training_step(self, batch):
        output = self.net(batch)
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(output.square().mean(), retain_graph=True)
        self.manual_backward(output.sum())
        optimizer.step()


class Penalized(Toy):
    def training_step(self, batch):
        x = batch.clone().requires_grad_()
        output = self.net(x)
        (slope,) = torch.autograd.grad(output.sum(), x, create_graph=True)
        return output.square().mean() + slope.square().mean()


@pytest.mark.parametrize("model", [TwoBackwards, Penalized])
def test_two_backwards_through_one_graph_and_an_inner_autograd_grad_both_count(tmp_path, model):
    logger = GradientLogger("net.2", statistics=tuple(FORMULAS))
    fit(tmp_path, model(mlp()), batches(4), logger)
    output = mlp()(batches(4)[0])
    assert_true(logger.readings[0].statistics, [torch.ones_like(output), 2 * output / output.numel()])
