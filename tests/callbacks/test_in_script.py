"""What `hookboard run` adds inside the script: in this process, each part by itself."""

import pytest
import torch
from lightning.pytorch import Trainer
from torch import nn
from toys import trainer

from hookboard import HealthMonitor
from hookboard.callbacks import in_script as script

X, Y = torch.randn(16, 4, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 3


@pytest.fixture(autouse=True)
def options(monkeypatch):
    monkeypatch.setattr(script, "_monitors", [])
    given = {"off": [], "stop_on": None, "json": None}
    monkeypatch.setattr(script, "OPTIONS", given)
    return given


@pytest.fixture
def reader():
    found = script._LoopReader()
    yield found
    found.give_up()


def monitors(run):
    return [one for one in run.callbacks if isinstance(one, HealthMonitor)]


def test_a_trainer_gets_one_monitor_with_the_options_however_often_it_fits(tmp_path, options):
    options.update(off=["dropout"], stop_on="alarm")
    run = trainer(tmp_path)
    script.before_fit(run)
    script.before_fit(run)
    (monitor,) = monitors(run)
    assert (monitor.rules, monitor.stop_on, monitor.state_dict()) == (["*", "!dropout"], "alarm", {})


def test_a_trainer_that_has_a_monitor_keeps_it_alone(tmp_path):
    own = HealthMonitor()
    run = trainer(tmp_path, own)
    script.before_fit(run)
    assert monitors(run) == [own]


def test_a_rule_that_does_not_exist_is_said_and_the_training_goes_on(tmp_path, options):
    options["off"] = ["droput"]
    run = trainer(tmp_path)
    with pytest.warns(match="the training is not watched.*droput"):
        script.before_fit(run)
    assert monitors(run) == []


def steps(net, optimizer, count=3):
    for _ in range(count):
        nn.functional.cross_entropy(net(X), Y).backward()
        optimizer.step()
        optimizer.zero_grad()


def hooks():
    from torch.nn.modules import module
    from torch.optim import optimizer

    return len(module._global_forward_pre_hooks), len(optimizer._global_optimizer_post_hooks)


def test_the_first_step_of_a_bare_loop_is_read_and_nothing_is_left(reader):
    before, net = hooks(), nn.Sequential(nn.Linear(4, 3), nn.Softmax(1))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    reader.wait(optimizer)
    net(X)  # without a gradient nobody trains
    with torch.no_grad():
        net(X)
    steps(net, optimizer)
    assert [(one.rule, one.module) for one in reader.found] == [("loss_input", "1")]
    assert hooks() == before


def test_a_loop_of_one_step_is_read_when_the_script_ends(reader):
    net = nn.Sequential(nn.Linear(4, 3), nn.Softmax(1))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    reader.wait(optimizer)
    steps(net, optimizer, count=1)
    assert reader.found is None
    reader.end()
    assert [one.rule for one in reader.found] == ["loss_input"]


def test_a_model_that_is_called_by_its_parts_is_read_as_a_whole(reader):
    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    net = Whole()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    reader.wait(optimizer)
    for _ in range(2):
        nn.functional.cross_entropy(net.head(net.body(X)).softmax(1), Y).backward()
        optimizer.step()
    assert [one.rule for one in reader.found if one.severity == "alarm"] == ["loss_input"]


def test_networks_that_no_module_holds_together_are_not_read(reader, caplog):
    first, second = nn.Linear(4, 8), nn.Linear(8, 3)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], 0.1)
    reader.wait(optimizer)
    steps(lambda x: second(first(x)), optimizer)
    assert reader.found is None
    assert "no module has all that is trained" in caplog.text


def test_nothing_is_read_once_a_trainer_has_begun(reader, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "_reader", reader)
    before, net = hooks(), nn.Sequential(nn.Linear(4, 3), nn.Softmax(1))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    reader.wait(optimizer)
    script.before_fit(Trainer(logger=False, enable_checkpointing=False))
    script.before_optimizer(optimizer)
    steps(net, optimizer)
    assert reader.found is None
    assert hooks() == before
