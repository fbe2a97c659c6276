"""The numbers of verdicts on gradients, steps and validation, each against float64 over the raw tensors."""

import math

import numpy as np
import pytest
import torch
from callbacks.course import Course, looks_of, of_layer, shortened
from recorded import CROSS_ENTROPY, EVERY, STEPS, Recorded, classes, linear, numbers, rms, said, sized
from torch import nn
from toys import loader, trainer

from hookboard import HealthMonitor

SGD = torch.optim.SGD


def norms_of(model, count):
    """log10 of the norm of the gradient of each layer's output."""
    return np.log10([np.linalg.norm(model.gradients[f"net.{i}"]) for i in range(count)])


# Gradients on their way back


def test_by_what_factor_a_gradient_falls_and_that_it_falls_by_the_mean_of_the_layers_in_each(tmp_path):
    net = sized(*[linear(8, 8), nn.Sigmoid] * 6, linear(8, 3))
    model = Recorded(net, CROSS_ENTROPY)
    evidence = said(tmp_path, model, classes(), "vanishing_gradient")
    (fall,) = numbers("shrinks by a factor of # from", evidence)
    each, layers = numbers("steadily, by a factor of # per layer over # layers", evidence)
    norms = norms_of(model, 13)
    most = np.maximum.accumulate(norms)[1:]  # the fall is counted from the second layer on
    # The last quarter of 13 layers, and the second, as the most that any layer up to it gets.
    assert fall == pytest.approx(10 ** (np.median(norms[-3:]) - max(norms[:2])), rel=0.06)
    assert layers == 12
    assert each == pytest.approx(10 ** ((most[-1] - most[0]) / 11), rel=0.06)


# Weights that do not move


def grouped(rate, other):
    """Gives the second Linear of three a learning rate of its own."""

    def optimizer(parameters, lr):
        rest = [*net[0].parameters(), *net[4].parameters()]
        return SGD([{"params": rest}, {"params": net[2].parameters(), "lr": other}], lr=lr)

    net = sized(linear(8, 16), nn.ReLU, linear(16, 16), nn.ReLU, linear(16, 3))
    return Recorded(net, CROSS_ENTROPY, rate, optimizer)


def still_in(model, layers=(0, 2, 4)):
    """The Linear layers that a gradient reached and that the last step left as they were."""
    return [
        i
        for i in layers
        if of_layer(model.grads, i).any() and (of_layer(model.before, i) == of_layer(model.after, i)).all()
    ]


def test_a_rate_of_0_and_the_largest_of_the_others(tmp_path):
    model = grouped(rate=0.0123, other=0.0)
    evidence = said(tmp_path, model, classes(), "not_updated")
    largest, still, layers = numbers("rate is 0, while other rates go up to # (# of # layers)", evidence)
    assert largest == 0.012
    assert (still, layers) == (len(still_in(model)), 3)


def test_a_rate_whose_updates_are_lost_in_rounding(tmp_path):
    model = grouped(rate=0.01, other=1.25e-12)
    evidence = said(tmp_path, model, classes(), "not_updated")
    rate, still, layers = numbers(
        "a step at a learning rate of # leaves the float32 weights unchanged (# of # layers)",
        evidence,
    )
    assert rate == shortened(1.25e-12)
    assert (still, layers) == (len(still_in(model)), 3)


def test_how_many_layers_are_in_an_optimizer(tmp_path):
    net = sized(linear(8, 16), nn.ReLU, linear(16, 16), nn.ReLU, linear(16, 16), nn.ReLU, linear(16, 3))
    model = Recorded(net, CROSS_ENTROPY, optimizer=lambda _, lr: SGD([*net[0].parameters(), *net[6].parameters()], lr))
    evidence = said(tmp_path, model, classes(), "not_updated")
    others, held, layers = numbers("the same is true of # other layer; # of # layers are in an optimizer", evidence)
    still = still_in(model, (0, 2, 4, 6))
    assert (others, held, layers) == (len(still) - 1, 4 - len(still), 4)


# Validation


class Validated(Course):
    """Keeps the outputs of the latest validation loop too."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.evaluated = {}
        for name, module in self.net.named_children():
            module.register_forward_hook(self._evaluate(f"net.{name}"))

    def _evaluate(self, name):
        def hook(module, args, output):
            if not self.training:
                self.evaluated.setdefault(name, []).append(output.detach().double().numpy())

        return hook

    def on_validation_start(self):
        self.evaluated, self.validated = {}, []

    def validation_step(self, batch):
        loss = self.loss(self.net(batch[0]), batch[1])
        self.validated.append(loss.item())
        self.log("val_loss", loss)


def gap(before, after):
    """How far outputs of shape (samples, channels) are from others, in standard deviations or powers of e."""
    spread = np.maximum(before.std(0), 0.1 * rms(before))
    shift = np.median(np.abs(after.mean(0) - before.mean(0)) / spread)
    return max(shift, abs(math.log(rms(after) / rms(before))))


def test_how_far_validation_is_from_training(tmp_path):
    net = sized(linear(8, 16), lambda: nn.BatchNorm1d(16, momentum=1e-4), nn.ReLU, linear(16, 3))
    model = Validated(net, CROSS_ENTROPY, rate=1e-2)
    data = [(5 * x + 10, y) for x, y in classes()]
    monitor = HealthMonitor(every_n_steps=EVERY, rules=["train_eval_gap"])
    options = {"limit_val_batches": 1.0, "val_check_interval": STEPS // 2, "num_sanity_val_steps": 0}
    trainer(tmp_path, monitor, **options).fit(
        model, loader(data), loader([(5 * x + 10, y) for x, y in classes(4, seed=1)])
    )
    (verdict,) = monitor.verdicts
    evaluation, training, size, usual, largest = numbers(
        "its outputs have an RMS of # in validation and # in training, and its channels differ by # standard "
        "deviations (# between two measurements in training); the largest gap is #, in net.",
        verdict.evidence,
    )
    evaluated = {name: np.concatenate(parts) for name, parts in model.evaluated.items()}
    *looks, last = [model.course[step] for step in looks_of(STEPS)][-8:]
    gaps = {name: gap(last[name], evaluated[name]) for name in evaluated}
    name, most = verdict.module, max(gaps, key=gaps.get)
    assert verdict.evidence.split("the largest gap is ")[1].split(", in ")[1].split(";")[0] == most
    assert evaluation == shortened(rms(evaluated[name]))
    assert training == shortened(rms(last[name]))
    assert (size, largest) == (float(f"{gaps[name]:.1f}"), float(f"{gaps[most]:.1f}"))
    assert usual == shortened(np.median([gap(last[name], look[name]) for look in looks]))
    losses = numbers("the logged validation loss is #, and the training loss #", verdict.evidence)
    assert losses == [shortened(np.mean(model.validated), 3), shortened(np.median(model.losses[-16:]), 3)]
