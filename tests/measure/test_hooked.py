"""Hooks on modules: in their order, and none is left."""

import copy
import io
import pickle
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from torch import nn

import hookboard
from hookboard.base.torch_private import forward_hooks_of, forward_pre_hooks_of
from hookboard.measure.hooked import EDITS_GRADIENTS, EDITS_VALUES, READS, READS_BEFORE_EDITS, hooked


class Notes:
    """Its methods are hooks that note that they were called."""

    def __init__(self, called, name):
        self.called, self.name = called, name

    def note(self, *given):
        self.called.append(self.name)


def has_hooks(module):
    return bool(forward_hooks_of(module) or forward_pre_hooks_of(module))


def test_no_hook_is_left_after_an_error():
    module, called = nn.Identity(), []
    note = Notes(called, "hook").note

    def fails():
        with hooked(module, note, note):
            assert has_hooks(module)
            module(torch.ones(1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    module(torch.ones(1))
    assert not has_hooks(module)
    assert len(called) == 2


def test_hooks_run_in_their_order_whenever_they_came():
    module, called = nn.Identity(), []
    places = {"gradients": EDITS_GRADIENTS, "read": READS, "values": EDITS_VALUES, "first": READS_BEFORE_EDITS}
    for name, place in places.items():
        note = Notes(called, name).note
        hooked(module, note, note, place=place)
    module(torch.ones(1))
    assert called == ["first", "values", "read", "gradients"] * 2


def test_a_hook_that_must_always_be_called_is_called_after_an_error():
    module, called = nn.Linear(2, 2), []
    with hooked(module, after=Notes(called, "hook").note, always_call=True), pytest.raises(RuntimeError):
        module(torch.ones(3))
    assert called == ["hook"]


def saved_and_loaded(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


WAYS = {
    "deepcopy": copy.deepcopy,
    "save": saved_and_loaded,
    **{f"protocol {n}": lambda module, n=n: pickle.loads(pickle.dumps(module, n)) for n in (2, 5)},
}


def net_with_hooks_of_every_kind(hooks):
    net = nn.Sequential(nn.Linear(2, 2))
    note = Notes([], "hook").note
    for how in ({}, {"with_kwargs": True}, {"with_kwargs": True, "always_call": True}):
        hooks.enter_context(hooked(net[0], note, note, **how))
    return net


@pytest.mark.filterwarnings("ignore:.*deprecated")
@pytest.mark.parametrize("way", WAYS)
def test_a_copied_module_has_no_hook_after_its_first_call(way):
    with ExitStack() as hooks:
        net = net_with_hooks_of_every_kind(hooks)
        twin = WAYS[way](net)
        assert twin(torch.ones(1, 2)).equal(net(torch.ones(1, 2)))
        assert not has_hooks(twin[0])
        assert has_hooks(net[0])
    bare = nn.Linear(2, 2).__dict__
    assert all(not held for name, held in twin[0].__dict__.items() if name.endswith("s") and not bare[name])
    assert torch.jit.script(twin)(torch.ones(1, 2)).equal(net(torch.ones(1, 2)))


@pytest.mark.compiles
def test_a_copy_of_a_module_with_hooks_can_be_compiled():
    with ExitStack() as hooks:
        net = net_with_hooks_of_every_kind(hooks)
        twin = copy.deepcopy(net)
    assert torch.compile(twin, backend="eager")(torch.ones(1, 2)).equal(net(torch.ones(1, 2)))
    assert torch.compile(twin, backend="eager", fullgraph=True)(torch.ones(1, 2)).equal(net(torch.ones(1, 2)))
    assert not has_hooks(twin[0])


@pytest.mark.spawns
def test_a_module_that_was_saved_with_hooks_is_loaded_without_hookboard(tmp_path):
    with ExitStack() as hooks:
        torch.save(net_with_hooks_of_every_kind(hooks), tmp_path / "net.pt")
    load = """
import sys, torch
sys.modules["hookboard"] = None
net = torch.load("net.pt", weights_only=False)
net(torch.ones(1, 2))
assert not net[0]._forward_hooks
"""
    subprocess.run([sys.executable, "-c", load], cwd=tmp_path, check=True)


def test_hooks_on_modules_are_put_on_in_one_place():
    sources = Path(hookboard.__file__).parent.rglob("*.py")
    puts = [source.name for source in sources if "register_forward" in source.read_text(encoding="utf-8")]
    assert puts == ["hooked.py"]
