"""Steps with more than one backward pass."""

import torch
from oracle import assert_true
from toys import Toy, batches, fit, mlp

from hookboard import GradientLogger
from hookboard.measure.statistics import FORMULAS


def gradients(folder, model, *others):
    """What was read of the only step, by module name."""
    watched = GradientLogger(statistics=tuple(FORMULAS))
    fit(folder, model, batches(4), watched, *others)
    return {reading.site.name: reading for reading in watched.readings}


class TwoBackwards(Toy):
    def __init__(self, net):
        super().__init__(net)
        self.automatic_optimization = False

    def training_step(self, batch):
        output = self.net(batch)
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(output.square().mean(), retain_graph=True)
        self.manual_backward(output.sum())
        optimizer.step()


def test_two_backwards_through_one_graph_both_count(tmp_path):
    found = gradients(tmp_path, TwoBackwards(mlp()))
    output = mlp()(batches(4)[0])
    assert_true(found["net.2"].statistics, [2 * output / output.numel(), torch.ones_like(output)])


class Penalized(Toy):
    def training_step(self, batch):
        x = batch.clone().requires_grad_()
        output = self.net(x)
        (slope,) = torch.autograd.grad(output.sum(), x, create_graph=True)
        return output.square().mean() + slope.square().mean()


def test_the_gradients_of_an_inner_autograd_grad_count_as_those_of_another_backward(tmp_path):
    found = gradients(tmp_path, Penalized(mlp()))
    output = mlp()(batches(4)[0])
    assert_true(found["net.2"].statistics, [torch.ones_like(output), 2 * output / output.numel()])
