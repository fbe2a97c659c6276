"""Which layer's output flows into which, against what changes when an output is changed."""

import itertools

import pytest
import torch
from toys import Toy, batches, fit

from hookboard import HealthMonitor, Rule
from hookboard.tracing.questions import Reader


class Branches(Toy):
    """Two branches that share a stem and meet in a head; one passes through a buffer of zeros that is written to."""

    def __init__(self):
        super().__init__(torch.nn.Identity())
        names = ["stem", "left", "left_end", "right", "alone", "head"]
        self.layers = torch.nn.ModuleDict({name: torch.nn.Linear(4, 4) for name in names})

    def forward(self, x):
        stem = self.layers["stem"](x).relu()
        left = torch.zeros(len(x), 4, dtype=x.dtype)
        left[:, :4] = self.layers["left"](stem)
        left = self.layers["left_end"](left)
        right = torch.nn.functional.gelu(self.layers["right"](stem))
        both = torch.cat([left, right, self.layers["alone"](x)], dim=1)
        return self.layers["head"](both.view(len(x), 3, 4).sum(1))

    def training_step(self, batch):
        return self(batch).square().mean()


def outputs(model, x, changed=""):
    """The output of each layer, where that of one has been changed."""
    found = {}

    def hook(name):
        return lambda module, args, output: found.setdefault(name, output + 1.0 if name == changed else output)

    handles = [layer.register_forward_hook(hook(name)) for name, layer in model.layers.items()]
    model(x)
    for handle in handles:
        handle.remove()
    return found


def flow_of(model, x):
    reader = Reader(model, x)
    with reader.reading():
        model.training_step(x)
    return reader.step.flow()


def test_layers_are_apart_if_no_change_of_one_changes_the_other():
    model, x = Branches().double(), torch.randn(5, 4, dtype=torch.float64)
    flow, before = flow_of(model, x), outputs(model, x)
    changes = {name: outputs(model, x, name) for name in before}
    for one, other in itertools.permutations(before, 2):
        is_apart = torch.equal(changes[one][other], before[other]) and torch.equal(changes[other][one], before[one])
        assert flow.are_apart(f"layers.{one}", f"layers.{other}") == is_apart, (one, other)


def test_what_comes_from_where_nobody_saw_may_come_from_any_layer_before():
    class Hidden(Branches):
        def forward(self, x):
            left = self.layers["left"](x).detach().numpy()
            return self.layers["head"](torch.from_numpy(left)) + self.layers["right"](x)

    flow = flow_of(Hidden(), torch.randn(5, 4))
    assert not flow.are_apart("layers.left", "layers.head")
    assert flow.are_apart("layers.left", "layers.right")


@pytest.mark.trains
def test_rules_know_the_flow_of_the_training_step(tmp_path):
    seen = []
    rule = Rule("mine", lambda run: seen.append(run.facts.flow) or [])
    fit(tmp_path, Branches(), batches(5, 5), HealthMonitor(every_n_steps=1, rules=[rule, "loss_input"]))
    assert [flow.are_apart("layers.left", "layers.right") for flow in seen] == [True, True]
    assert not seen[0].are_apart("layers.stem", "layers.right")
