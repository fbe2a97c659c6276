"""Where copying all weights take too much memory, `ParameterLogger` measures their updates by turns."""

import itertools
import weakref

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from toys import EachStep, Toy, batches, fit, mlp

from hookboard import ParameterLogger
from hookboard.callbacks import weights
from hookboard.callbacks.weights import MOST_MISSED, Turns
from hookboard.model.parameters import weights_of

FIRST, SECOND, THIRD = {"net.0.weight"}, {"net.0.bias", "net.2.weight"}, {"net.2.bias"}
"""The parameters of `mlp()` have 128, 32, 96 and 12 bytes: with room for 130 these have their turn together."""


@pytest.fixture
def room(monkeypatch):
    """Sets how many bytes the weights may take that have their turn in one step."""
    return lambda size: monkeypatch.setattr("hookboard.callbacks.weights.MOST_COPIED_BYTES", size)


@pytest.fixture
def held(monkeypatch):
    """The bytes of all copies that lie in memory, after each one that was made."""
    copy, alive, held = weights._copied, weakref.WeakSet(), []

    def noted(tensor, spare):
        made = copy(tensor, spare)
        alive.add(made.untyped_storage())
        held.append(sum(storage.nbytes() for storage in alive))
        return made

    monkeypatch.setattr(weights, "_copied", noted)
    return held


class Keeps(Toy):
    """The parameters in float64, before the fit and after each step."""

    def __init__(self, net):
        super().__init__(net)
        self.kept = [self.copies()]

    def copies(self):
        return {name: p.detach().double().clone() for name, p in self.named_parameters()}

    def on_train_batch_end(self, *args):
        self.kept.append(self.copies())


def updates(readings):
    return {r.site.name: r.statistics for r in readings if r.site.role == "parameter_update"}


def turns_of(folder, model, steps, **options):
    """The names of the parameters whose updates were measured, by step."""
    logger = ParameterLogger()
    kept = EachStep(logger)
    fit(folder, model, batches(4) * steps, logger, kept, **options)
    return [updates(readings).keys() for readings in kept.readings]


def test_each_parameter_has_its_turn_and_then_again(tmp_path, room):
    room(130)
    assert turns_of(tmp_path, Toy(mlp()), 6) == [FIRST, SECOND, THIRD] * 2


def test_the_updates_of_those_in_turn_are_those_of_the_very_step(tmp_path, room):
    room(130)
    model, logger = Keeps(mlp()), ParameterLogger(statistics=["update_norm", "update_ratio", "unchanged_fraction"])
    kept = EachStep(logger)
    fit(tmp_path, model, batches(4, 5, 6, 7), logger, kept)
    for (before, after), readings in zip(itertools.pairwise(model.kept), kept.readings, strict=True):
        for name, found in updates(readings).items():
            norm = (after[name] - before[name]).norm().item()
            assert found == {
                "update_norm": pytest.approx(norm, rel=1e-6),
                "update_ratio": pytest.approx(norm / before[name].norm().item(), rel=1e-6),
                "unchanged_fraction": (after[name] == before[name]).double().mean().item(),
            }


def test_the_copies_take_no_more_memory_than_there_is_room_for(tmp_path, room, held):
    room(130)
    fit(tmp_path, Toy(mlp()), batches(4) * 6, ParameterLogger())
    assert max(held) <= 130


def test_a_parameter_for_which_there_is_no_room_is_copied_alone(tmp_path, room, held):
    room(100)
    assert FIRST in turns_of(tmp_path, Toy(mlp()), 6)
    assert max(held) == 128


def test_that_there_are_turns_is_said_once_and_those_who_wait_are_not_named_as_missing(tmp_path, room, monkeypatch):
    lines = []
    monkeypatch.setattr("hookboard.callbacks.parameter.inform", lines.append)
    room(130)
    turns_of(tmp_path, Toy(mlp()), 4)  # a warning would fail the test
    (line,) = lines
    assert "all 4 parameters" in line
    assert "each update is measured in about one in 3 logged steps" in line


def test_a_parameter_that_no_optimizer_holds_is_named_as_missing(tmp_path, room):
    class OfOne(Toy):
        def configure_optimizers(self):
            return torch.optim.SGD(self.net[0].parameters(), lr=0.1)

    room(130)
    with pytest.warns(UserWarning, match="2 of 7 sites had nothing to measure") as warned:
        turns_of(tmp_path, OfOne(mlp()), 3)
    assert "net.2.weight, net.2.bias: parameter_update" in str(warned[-1].message)


class Alternating(Toy):
    """The second optimizer steps in every other batch."""

    automatic_optimization = False

    def training_step(self, batch, batch_idx):
        self.manual_backward(self.loss(self.net(batch)))
        for optimizer in self.optimizers()[: 2 - batch_idx % 2]:
            optimizer.step()
            optimizer.zero_grad()

    def configure_optimizers(self):
        return [torch.optim.SGD(self.net[i].parameters(), lr=0.1) for i in (0, 2)]


def test_a_parameter_keeps_its_turn_until_its_optimizer_steps(tmp_path, room):
    room(130)
    found = turns_of(tmp_path, Alternating(mlp()), 12)
    assert set().union(*found) == FIRST | SECOND | THIRD
    assert all(len(step) < 4 for step in found)


def test_a_parameter_whose_optimizer_never_steps_again_does_not_hold_up_the_others(room):
    room(130)
    layers = {"0": nn.Linear(4, 8), "1": nn.Linear(4, 8)}
    both, turns = weights_of(layers), Turns()
    one = {name: weight for name, weight in both.items() if name.startswith("1")}
    assert turns.of(both).keys() == {"0.weight"}
    found = set()
    for _ in range(3 * MOST_MISSED):
        stepped = turns.of(one).keys()
        turns.end(stepped)
        found |= stepped
    assert found == one.keys()


def test_what_a_parametrization_computes_takes_the_room_that_it_needs(tmp_path, room, held):
    net = nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 8)), nn.Linear(8, 8))
    room(300)
    fit(tmp_path, Toy(net), batches(4) * 6, ParameterLogger())
    assert max(held) <= 300


def test_where_the_model_changes_the_next_turn_goes_by_the_new_sizes(tmp_path, room):
    class Changes(Toy):
        def on_train_batch_start(self, batch, batch_idx):
            if batch_idx == 2:
                self.net[2] = nn.Linear(8, 4)
                self.trainer.optimizers[0].add_param_group({"params": list(self.net[2].parameters())})

    room(130)
    with pytest.warns(UserWarning, match="is watched as it is now"):
        found = turns_of(tmp_path, Changes(mlp()), 6)
    assert found == [FIRST, SECOND, THIRD, FIRST, {"net.0.bias"}, {"net.2.weight"}]
