"""What `hookboard run` adds inside the script: in this process, each part by itself."""

import contextlib
import json
import threading

import pytest
import torch
from lightning.pytorch import Trainer
from torch import nn
from toys import Toy, loader, trainer

from hookboard import HealthMonitor
from hookboard.callbacks import in_script as script

X, Y = torch.randn(16, 4, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 3


@pytest.fixture(autouse=True)
def options(monkeypatch):
    monkeypatch.setattr(script, "_found", {})
    given = {"off": [], "stop_on": None, "json": None}
    monkeypatch.setattr(script, "OPTIONS", given)
    return given


@pytest.fixture
def reader():
    made = script._LoopReader()
    yield made
    made.give_up()


def found_by(reader):
    return script._found.get(reader)


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


def test_a_checkpoint_has_nothing_of_the_monitor(tmp_path):
    run = trainer(tmp_path)
    script.before_fit(run)
    run.fit(Toy(nn.Linear(4, 3)), loader([X] * 4), loader([X]))
    run.save_checkpoint(tmp_path / "kept.ckpt")
    kept = torch.load(tmp_path / "kept.ckpt", weights_only=False)
    assert "hookboard" not in kept
    assert not any("HealthMonitor" in name for name in kept["callbacks"])


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
    assert [(one.rule, one.module) for one in found_by(reader)] == [("loss_input", "1")]
    assert hooks() == before


def test_a_loop_of_one_step_is_read_when_the_script_ends(reader):
    net = nn.Sequential(nn.Linear(4, 3), nn.Softmax(1))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    reader.wait(optimizer)
    steps(net, optimizer, count=1)
    assert found_by(reader) is None
    reader.end()
    assert [one.rule for one in found_by(reader)] == ["loss_input"]


@pytest.mark.parametrize(("off", "said"), [("loss_input", "No findings."), ("loss_inptu", None)])
def test_a_rule_is_left_out_of_a_bare_loop_and_an_unknown_one_is_told(reader, options, caplog, off, said):
    net = nn.Sequential(nn.Linear(4, 3), nn.Softmax(1))
    optimizer, options["off"] = torch.optim.SGD(net.parameters(), 0.1), [off]
    reader.wait(optimizer)
    with contextlib.nullcontext() if said else pytest.warns(match="loss_inptu.*loss_input"):
        steps(net, optimizer, count=2)
    assert said is None or said in caplog.text


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
    assert [one.rule for one in found_by(reader) if one.severity == "alarm"] == ["loss_input"]


def test_networks_that_no_module_holds_together_are_not_read(reader, caplog):
    first, second = nn.Linear(4, 8), nn.Linear(8, 3)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], 0.1)
    reader.wait(optimizer)
    steps(lambda x: second(first(x)), optimizer)
    assert found_by(reader) is None
    assert "no single module holds all trained parameters" in caplog.text
    assert "model = nn.ModuleList([encoder, head])" in caplog.text


def test_a_model_that_is_never_in_training_mode_is_said(reader, caplog):
    net = nn.Linear(4, 3).eval()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    reader.wait(optimizer)
    steps(net, optimizer)
    del optimizer  # as that of a function that has ended
    reader.end()
    assert "no module with trained parameters was called in training mode" in caplog.text


def test_what_was_found_is_written_before_the_script_ends_and_optimizers_are_not_kept(reader, options, tmp_path):
    options["json"], net = str(tmp_path / "found.json"), nn.Sequential(nn.Linear(4, 3), nn.Softmax(1))
    (tmp_path / "found.json").write_text("[]")
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    reader.wait(optimizer)
    steps(net, optimizer)
    assert [one["rule"] for one in json.loads((tmp_path / "found.json").read_text())] == ["loss_input"]
    for _ in range(9):
        reader.wait(torch.optim.SGD(net.parameters(), 0.1))
    assert not reader._optimizers


def modes():
    return torch.overrides._get_current_function_mode_stack()


def test_a_block_with_a_device_ends_where_it_ends(reader):
    net = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    reader.wait(optimizer)
    for _ in range(2):
        with torch.device("meta"):
            loss = nn.functional.cross_entropy(net(X), Y)
        assert torch.zeros(1).device.type == "cpu"
        loss.backward()
        optimizer.step()
    assert found_by(reader) is not None
    assert modes() == []


@pytest.mark.compiles
def test_a_compiled_function_is_compiled_without_what_waits_for_a_module(reader):
    net = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    reader.wait(optimizer)
    loss = torch.compile(lambda: nn.functional.cross_entropy(net(X), Y), backend="eager", fullgraph=True)
    loss().backward()


@pytest.mark.compiles
def test_torch_does_not_warn_of_what_waits_for_a_compiled_module(reader):
    torch.compile(nn.Linear(4, 3), backend="eager")(X)  # what torch 2.6 imports for the first one sets filters
    net = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    reader.wait(optimizer)
    steps(torch.compile(net, backend="eager"), optimizer)  # warnings are errors here
    assert found_by(reader) is not None


def test_a_closure_that_an_optimizer_calls_often_is_no_cleared_gradient(reader):
    net = nn.Linear(4, 3)
    optimizer = torch.optim.LBFGS(net.parameters(), 0.1)
    reader.wait(optimizer)

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(X), Y)
        loss.backward()
        return loss

    optimizer.step(closure)
    optimizer.step(closure)
    assert list(found_by(reader)) == []


def test_another_thread_does_not_end_the_step(reader):
    net = nn.Sequential(nn.Linear(4, 3), nn.Softmax(1))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    reader.wait(optimizer)
    steps(net, optimizer, count=1)
    other = threading.Thread(target=steps, args=(net, optimizer))
    other.start()
    other.join()
    assert found_by(reader) is None
    steps(net, optimizer, count=1)
    assert [one.rule for one in found_by(reader)] == ["loss_input"]
    assert modes() == []


def test_a_step_that_does_not_end_is_left_when_it_is_too_long(reader, monkeypatch, caplog):
    monkeypatch.setattr("hookboard.tracing.program.MAX_OPS", 10)
    before, net = hooks(), nn.Linear(4, 3)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    reader.wait(optimizer)
    for _ in range(10):  # all of one step of the optimizer
        nn.functional.cross_entropy(net(X), Y).backward()
    optimizer.step()
    net(X)
    assert (hooks(), modes()) == (before, [])
    assert "was not inspected: it makes more than 10 calls" in caplog.text
    assert "has read" not in caplog.text


def test_a_module_that_was_never_completed_is_passed_over(reader):
    class Half(nn.Module):
        def __init__(self):
            left.append(self)

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    left = []
    net = Whole()
    Half()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    reader.wait(optimizer)
    steps(lambda x: net.head(net.body(x)), optimizer)
    assert found_by(reader) is not None


def test_a_file_that_cannot_be_written_is_said(tmp_path, options):
    options["json"] = str(tmp_path / "missing" / "found.json")
    run = trainer(tmp_path)
    script.before_fit(run)
    with pytest.warns(match="training is not watched .FileNotFoundError"):
        run.fit(Toy(nn.Linear(4, 3)), loader([X]), loader([X]))


def test_nothing_is_read_once_a_trainer_has_begun(reader, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "_reader", reader)
    before, net = hooks(), nn.Sequential(nn.Linear(4, 3), nn.Softmax(1))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    reader.wait(optimizer)
    script.before_fit(Trainer(logger=False, enable_checkpointing=False))
    script.before_optimizer(optimizer)
    steps(net, optimizer)
    assert found_by(reader) is None
    assert hooks() == before
