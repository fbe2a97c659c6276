"""Hooks on modules: in their order, and none is left."""

from pathlib import Path

import pytest
import torch
from torch import nn

import hookboard
from hookboard.base.torch_private import Detour, forward_hooks_of, forward_pre_hooks_of
from hookboard.measure import EDITS_GRADIENTS, EDITS_VALUES, READS_BEFORE_EDITS, hooked


class Notes:
    """Its methods are hooks that note that they were called."""

    def __init__(self, called, name, place=None):
        self.called, self.name = called, name
        if place is not None:
            self.place_among_hooks = place

    def note(self, *given):
        self.called.append(self.name)


def has_hooks(module):
    return bool(forward_hooks_of(module) or forward_pre_hooks_of(module) or Detour.of(module))


@pytest.mark.parametrize("is_hidden", [False, True])
def test_no_hook_is_left_after_an_error(is_hidden):
    module, called = nn.Identity(), []
    note = Notes(called, "hook").note

    def fails():
        with hooked(module, note, note, is_hidden=is_hidden):
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
    places = {"gradients": EDITS_GRADIENTS, "read": None, "values": EDITS_VALUES, "first": READS_BEFORE_EDITS}
    for name, place in places.items():
        note = Notes(called, name, place).note
        hooked(module, note, note)
    module(torch.ones(1))
    assert called == ["first", "values", "read", "gradients"] * 2


def test_a_hook_that_must_always_be_called_is_called_after_an_error():
    module, called = nn.Linear(2, 2), []
    with hooked(module, after=Notes(called, "hook").note, always_call=True), pytest.raises(RuntimeError):
        module(torch.ones(3))
    assert called == ["hook"]


def test_hooks_on_modules_are_put_on_in_one_place():
    sources = Path(hookboard.__file__).parent.rglob("*.py")
    puts = [source.name for source in sources if "register_forward" in source.read_text(encoding="utf-8")]
    assert puts == ["hooked.py"]
