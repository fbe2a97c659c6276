"""The step since which units are said to be dead, against the raw outputs of a training in which they die."""

import re

import torch
from torch import nn
from toys import Toy, batches, fit

from hookboard import HealthMonitor

DIES = {0: 0, 1: 0, 2: 0, 3: 1, 4: 11, 5: 11, 6: 12, 7: 21}
"""Of each unit that dies the optimizer step before which it does."""

FIRES = {6: 22}
"""A dead unit that fires once, between two looks."""

EVERY, STEPS = 5, 60


class Dying(Toy):
    """Whose units die at known steps; it keeps its raw outputs."""

    def __init__(self):
        super().__init__(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)))
        self.raw = []
        self.net[1].register_forward_hook(lambda module, args, output: self.raw.append(output.detach().double()))

    def on_train_batch_start(self, batch, batch_idx):
        step = self.trainer.global_step
        fire = [unit for unit, at in FIRES.items() if at == step]
        with torch.no_grad():
            self.net[0].bias.fill_(1.0)
            self.net[0].bias[[unit for unit, at in DIES.items() if at <= step and unit not in fire]] = -100.0


def test_the_steps_since_which_units_are_dead_are_those_of_the_raw_outputs():
    model, monitor = Dying(), HealthMonitor(rules="dead_units")
    fit(None, model, batches(*[64] * STEPS), monitor, log_every_n_steps=EVERY, max_epochs=1)
    dead = torch.stack([(output == 0).all(0) for output in model.raw])
    looks = [0, *range(EVERY - 1, STEPS, EVERY)]
    since = [next((s for s in looks if dead[[n for n in looks if n >= s], u].all()), None) for u in range(16)]
    begins = sorted(step for step in since if step is not None)
    (verdict,) = monitor.verdicts
    assert len(begins) == len(DIES)
    assert dead[FIRES[6] - 2 : FIRES[6] + 2, 6].tolist() == [True, True, False, True]
    said = re.search(
        r"^(\d+) of 16 .* at every measurement since step (\d+) \((\d+) of them by step (\d+)\)\.", verdict.evidence
    )
    whole, last, some, by = map(int, said.groups())
    assert (whole, last) == (len(begins), begins[-1])
    assert some == sum(step <= by for step in begins)
    assert (verdict.since, by) == (begins[4], begins[4])  # since when more than a quarter are dead
    assert "initialized" in verdict.advice
