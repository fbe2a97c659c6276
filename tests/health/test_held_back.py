"""`clipping` and `weight_decay`: what is said equals what the raw tensors give, and what is usual is no finding."""

import math
import re
from dataclasses import replace

import pytest
import torch
from health import looks
from health.trainings import LAYERS, WEIGHTS, falling, places, seen, stuck, training
from lightning.pytorch import Callback
from torch import nn
from toys import Toy, batches, fit

from hookboard import HealthMonitor
from hookboard.health.look import HeldBack
from hookboard.health.losses import STEPS_BEFORE_STUCK
from hookboard.health.rules.optimizer import CLIPPED_SHARE, DECAY_SHARE_ALARM
from hookboard.health.rules.shared import UPDATE_RATIO_SMALL
from hookboard.health.run import StepFacts
from hookboard.tracing.built_in import RULES

MATRICES = [name for name in WEIGHTS if name.endswith("weight")]


def exactly(name, role, rms):
    return looks.reading(name, role, [looks.row(100, 0.0, rms)])


def findings(rule, held, change, losses=None, edit=lambda look: look):
    count = STEPS_BEFORE_STUCK
    run = seen(training(count, lambda step: change, losses=losses or falling(count), edit=edit))
    run.facts = StepFacts(held_back=dict.fromkeys(WEIGHTS, held))
    return list(RULES[rule].judge(run))


def gradients(rms):
    return {(name, "parameter_grad"): exactly(name, "parameter_grad", rms) for name in WEIGHTS}


NORM = math.sqrt(sum(math.prod(shape) for layer in LAYERS.values() for shape in layer.shapes.values()))
"""The norm of the gradients where each is 1."""


def by_sgd(look):
    return replace(look, stepped={name: replace(one, is_adaptive=False) for name, one in look.stepped.items()})


@pytest.mark.parametrize(("times", "fires"), [(0.99, True), (1.01, False)])
def test_clipping_is_told_where_it_leaves_a_tenth(times, fires):
    held = HeldBack(0.0, False, times * CLIPPED_SHARE * NORM)
    assert bool(findings("clipping", held, gradients(1.0), edit=by_sgd)) is fires


def test_clipping_is_not_told_of_steps_that_do_not_follow_the_gradients_size():
    held = HeldBack(0.0, False, 1e-4)
    assert findings("clipping", held, gradients(1.0), stuck(STEPS_BEFORE_STUCK)) == []


def moved(decay_share, ratio):
    """Weights of 0.1, of which an update moves this share, and the options that take the other one."""
    updates = {(name, "parameter_update"): exactly(name, "parameter_update", 0.1 * ratio) for name in MATRICES}
    before = {(name, "parameter_before"): exactly(name, "parameter_before", 0.1) for name in MATRICES}
    return HeldBack(decay_share / 1e-3, True, math.inf), updates | before


@pytest.mark.parametrize(("times", "fires"), [(0.99, True), (1.01, False)])
def test_decay_that_is_taken_outweighs_a_step_less_than_the_root_of_2_times_its_part(times, fires):
    assert bool(findings("weight_decay", *moved(0.01, times * math.sqrt(2) * 0.01))) is fires


def test_decay_that_hardly_moves_a_weight_is_well_even_without_a_gradient():
    share = 0.9 * UPDATE_RATIO_SMALL
    assert findings("weight_decay", *moved(share, share)) == []


@pytest.mark.parametrize(("times", "fires"), [(1.01, True), (0.99, False)])
def test_decay_that_is_added_is_compared_with_the_gradient(times, fires):
    before = {(name, "parameter_before"): exactly(name, "parameter_before", 0.1) for name in MATRICES}
    found = findings("weight_decay", HeldBack(times * 10.0, False, math.inf), before | gradients(1.0))
    assert bool(found) is fires


@pytest.mark.parametrize(
    ("share", "losses", "severity"),
    [
        (0.9 * DECAY_SHARE_ALARM, None, "note"),
        (1.1 * DECAY_SHARE_ALARM, None, "alarm"),
        (0.001, stuck(STEPS_BEFORE_STUCK), "alarm"),
    ],
)
def test_decay_is_an_alarm_if_it_leaves_nothing_or_the_loss_shows_harm(share, losses, severity):
    assert places(findings("weight_decay", *moved(share, share), losses=losses)) == [("", severity)]


class RawTensors(Callback):
    """Notes the raw weights and gradients of each step, before the Trainer clips."""

    def __init__(self):
        self.norms, self.weights, self.gradients = [], [], []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        grads = {name: p.grad.double() for name, p in pl_module.named_parameters()}
        self.norms.append(torch.cat([g.flatten() for g in grads.values()]).norm().item())
        self.weights.append({n: p.detach().double().clone() for n, p in pl_module.named_parameters()})
        self.gradients.append({n: g.clone() for n, g in grads.items()})


class Decayed(Toy):
    """Trains by an SGD with this weight decay."""

    def __init__(self, decay):
        super().__init__(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)))
        self.decay = decay

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.001, weight_decay=self.decay)


def fitted(decay=0.0, **options):
    torch.manual_seed(0)
    raw, monitor = RawTensors(), HealthMonitor(every_n_steps=1, audit=False)
    fit(None, Decayed(decay), batches(*[8] * 9), raw, monitor, **options)
    return raw, {verdict.rule: verdict for verdict in monitor.verdicts}


@pytest.mark.trains
def test_the_norms_that_are_named_are_those_of_the_raw_gradients():
    raw, verdicts = fitted(gradient_clip_val=1e-4)
    evidence = verdicts["clipping"].evidence
    low, high = map(float, re.search(r"their norm was (\S+) to (\S+) at", evidence).groups())
    last = raw.norms[-int(re.search(r"the last (\d+) measurements", evidence)[1]) :]
    assert (low, high) == (pytest.approx(min(last), rel=0.05), pytest.approx(max(last), rel=0.05))


@pytest.mark.trains
def test_the_parts_of_decay_and_gradient_that_are_named_are_those_of_the_raw_tensors():
    raw, verdicts = fitted(decay=50.0)
    evidence = verdicts["weight_decay"].evidence
    decay, gradient = map(float, re.search(r"adds (\S+) to gradients of (\S+) ", evidence).groups())
    matrices = [name for name, weight in raw.weights[-1].items() if weight.dim() > 1]

    def rms(tensors):
        return torch.stack([tensors[name].square().mean().sqrt() for name in matrices]).median().item()

    assert decay == pytest.approx(50 * rms(raw.weights[-1]), rel=0.05)
    assert gradient == pytest.approx(rms(raw.gradients[-1]), rel=0.05)


def advised(decay, rate):
    """The advice where the weights move as far as this decay at this rate takes them."""

    def at_rate(look):
        return replace(look, stepped={name: replace(one, rate=rate) for name, one in look.stepped.items()})

    (finding,) = findings("weight_decay", HeldBack(decay, True, math.inf), moved(0, decay * rate)[1], edit=at_rate)
    return finding.advice


def test_a_usual_decay_that_takes_much_is_a_rate_that_is_too_high():
    assert advised(decay=0.01, rate=4.0).startswith("lower the learning rate: weight_decay=0.01 is not high")
    assert advised(decay=0.01, rate=4.0).endswith("scaled by the learning rate (4)")


def test_a_high_decay_that_takes_much_is_to_be_lowered():
    assert advised(decay=10.0, rate=4e-3).startswith("lower weight_decay")
