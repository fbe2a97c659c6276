"""Ctrl-C at any moment of a training leaves nothing of ours behind; INTERRUPTS=1000 tries so many moments."""

import os
import random

import pytest
import torch
from interrupting import Moments, OfTheUser, left_by, state, with_trainer, with_watch
from torch.overrides import _get_current_function_mode_stack, _pop_mode, _push_mode

from hookboard.base.torch_private import computing_plainly, put_on_stack, take_off_stack
from hookboard.measure.hooked import as_own_call, hear_backward, unhear_backward
from hookboard.tracing.live_step import StandingAside
from hookboard.tracing.program import StepTrace

pytestmark = [
    pytest.mark.trains,
    pytest.mark.filterwarnings("ignore"),  # Lightning's, on being interrupted
    pytest.mark.usefixtures("says_what_it_likes"),
]

TRIED = int(os.environ.get("INTERRUPTS", "16"))


@pytest.fixture
def says_what_it_likes(capfd, caplog):
    yield
    caplog.clear()


@pytest.mark.parametrize("make", [with_trainer, with_watch])
def test_ctrl_c_at_a_random_moment_of_a_training_leaves_nothing(make):
    for _ in range(2):
        model, run = make()
        assert not left_by(run, model, None)
    model, run = make()
    left_by(run, model, all_of_them := Moments())
    left = {}
    for moment in random.Random(0).sample(sorted(all_of_them.places.values()), TRIED):
        model, run = make()
        tried = Moments(moment)
        if found := left_by(run, model, tried):
            left[tried.where] = found
    model, run = make()
    assert not left_by(run, model, None)
    assert not left


def looks_for_signals():
    """Python does so when it enters a function written in Python, but not in each call of `len` and its like."""


def at_each_instruction(run, end):
    """Interrupt a function at each instruction of hookboard's in turn; return what `end` does not take away."""
    run()
    end()
    counting = Moments()
    counting.begin()
    run()
    counting.end()
    end()
    left = {}
    for moment in range(1, counting.count + 1):
        before = state()
        interrupted = Moments(moment)
        interrupted.begin()
        try:
            run()
            looks_for_signals()
        except KeyboardInterrupt as error:
            kept = error  # as a notebook does, which keeps all frames alive
            assert kept
        finally:
            interrupted.end()
        end()
        after = state()
        if before != after:
            left[moment, interrupted.where] = [name for name in before if before[name] != after[name]]
    return left


def test_no_mode_of_the_users_is_lost_while_one_of_ours_comes_and_goes():
    ours, theirs = OfTheUser(), [OfTheUser(), OfTheUser()]
    torch.set_default_device("cpu")
    for mode in theirs:
        _push_mode(mode)

    def comes_and_goes():
        put_on_stack(ours)
        take_off_stack(ours)

    try:
        assert not at_each_instruction(comes_and_goes, lambda: take_off_stack(ours))
        assert _get_current_function_mode_stack()[1:] == theirs
    finally:
        for _ in theirs:
            _pop_mode()
        torch.set_default_device(None)


def test_what_is_computed_plainly_ends_with_its_function():
    asked = computing_plainly(lambda: torch.is_grad_enabled())
    with torch.no_grad():
        assert asked()
        assert not at_each_instruction(lambda: as_own_call(asked), lambda: None)


def test_a_listener_to_backward_passes_goes():
    def listener(backward, losses):
        backward()

    def hears():
        hear_backward(listener)
        torch.ones(1, requires_grad=True).sum().backward()
        unhear_backward(listener)

    assert not at_each_instruction(hears, lambda: unhear_backward(listener))


def test_all_that_is_replaced_for_the_trace_is_put_back():
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trace = StepTrace(model, None, {}, lambda loss: True)
    aside = StandingAside(trace, lambda loss: None, lambda optimizer, has_closure: None)

    def stands_aside():
        aside.put()
        optimizer.step()
        aside.close()

    assert not at_each_instruction(stands_aside, aside.close)


def test_backward_is_heard_though_somebody_else_replaces_it_in_between(monkeypatch):
    heard = []

    def listener(backward, losses):
        heard.append(len(losses))
        backward()

    weight, real = torch.ones(1, requires_grad=True), torch.autograd.backward
    monkeypatch.setattr(torch.autograd, "backward", real)
    hear_backward(listener)
    ours = torch.autograd.backward
    monkeypatch.setattr(torch.autograd, "backward", lambda *args, **named: ours(*args, **named))
    unhear_backward(listener)
    hear_backward(listener)
    weight.sum().backward()
    unhear_backward(listener)
    assert heard == [1]
    assert weight.grad.item() == 1
