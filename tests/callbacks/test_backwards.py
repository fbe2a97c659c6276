"""Steps with more than one backward pass."""

import torch
from oracle import assert_true
from torch import nn
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


class Adversarial(Toy):
    """A generator and a discriminator take turns, as a GAN's do."""

    def __init__(self):
        super().__init__(nn.ModuleDict({"generator": nn.Linear(4, 4), "discriminator": nn.Linear(4, 1)}))
        self.automatic_optimization = False

    def training_step(self, batch):
        generator, discriminator = self.net.values()
        of_generator, of_discriminator = self.optimizers()
        of_discriminator.zero_grad()
        fake = generator(batch)
        self.manual_backward((discriminator(fake.detach()) - discriminator(batch)).mean())
        of_discriminator.step()
        of_generator.zero_grad()
        self.manual_backward(-discriminator(fake).mean())
        of_generator.step()

    def configure_optimizers(self):
        return [torch.optim.SGD(part.parameters(), lr=0.01) for part in self.net.values()]


def test_all_passes_of_a_gan_in_one_batch_are_one_step(tmp_path):
    other_roles = GradientLogger("net.discriminator", roles=["grad_input", "parameter_grad"])
    found = gradients(tmp_path, Adversarial(), other_roles)
    quarter = torch.full((4, 1), 0.25)
    assert_true(found["net.discriminator"].statistics, [quarter, -quarter, -quarter])
    assert found["net.generator"].moments.count == 16
    assert {reading.site.role for reading in other_roles.readings} == {"grad_input", "parameter_grad"}
