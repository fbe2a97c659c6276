"""`max_overhead` stretches the cadence, and `hookboard/overhead` tells what all callbacks take."""

import time
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import Callback
from toys import Toy, batches, events, fit, mlp, scalars

from hookboard import ActivationLogger, FeatureMapLogger, GradientLogger, HealthMonitor
from hookboard.clock import Clock, timed
from hookboard.hooks import Taps
from hookboard.loops.budget import OVERHEAD, Budget, OverheadShare, is_due_now


@pytest.mark.parametrize("given", [0, -0.1, 1.5, "2%", True])
def test_a_share_that_is_none_is_refused(given):
    with pytest.raises(ValueError, match=r"max_overhead=.*above 0 and at most 1, such as 0\.02"):
        ActivationLogger(max_overhead=given)


def budget_after(monkeypatch, share, look, step, looks=2, every=10, idle=0.0):
    """A budget after some looks of so many seconds, in steps of so many without them, with `idle` in all others."""
    now, clock = [0.0], Clock()
    for file in ("clock", "loops.budget"):
        monkeypatch.setattr(f"hookboard.{file}.perf_counter", lambda: now[0])
    budget = Budget(share, clock)
    for number in range(looks * every + 1):
        budget.begin_batch(number)
        budget.is_due = number % every == every - 1
        own = look if budget.is_due else idle
        clock.spent += own
        now[0] += step + own
    return budget


def test_looks_take_at_most_the_share_of_all_time(monkeypatch):
    factor = budget_after(monkeypatch, 0.02, look=0.012, step=0.01).wanted(10, 1)
    assert factor == 6
    assert 0.012 / (10 * factor * 0.01 + 0.012) <= 0.02 < 0.012 / (10 * (factor - 1) * 0.01 + 0.012)


def test_what_is_done_in_the_steps_between_counts_too(monkeypatch):
    factor = budget_after(monkeypatch, 0.02, look=0.012, step=0.01, idle=0.0001).wanted(10, 1)
    own = [0.012 + (10 * n - 1) * 0.0001 for n in (factor, factor - 1)]
    assert own[0] / (10 * factor * 0.01 + own[0]) <= 0.02 < own[1] / (10 * (factor - 1) * 0.01 + own[1])


def test_what_is_left_out_is_no_time_of_the_training(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("hookboard.loops.budget.perf_counter", lambda: now[0])
    budget = Budget(0.02, Clock())
    for number in range(4):
        budget.begin_batch(number)
        now[0] += 1.0
        if number == 1:
            now[0] += 5.0
            budget.leave_out(5.0)
    assert budget.step == pytest.approx(1.0)


def test_what_was_found_long_ago_counts_less_and_is_not_forgotten(monkeypatch):
    budget = budget_after(monkeypatch, 0.02, look=0.012, step=0.01, idle=0.0001)
    assert [budget.wanted(10, 12) for _ in range(20)] == [12] * 20


def test_looks_keep_half_of_the_share_where_the_steps_between_take_all_of_it(monkeypatch):
    factor = budget_after(monkeypatch, 0.02, look=0.012, step=0.01, idle=0.001).wanted(10, 1)
    assert 0.011 / (10 * factor * 0.01) <= 0.01 < 0.012 / (10 * (factor - 1) * 0.01)


def test_the_first_look_does_not_count(monkeypatch):
    assert budget_after(monkeypatch, 0.02, look=0.012, step=0.01, looks=1).wanted(10, 1) == 1


@pytest.mark.parametrize(("now", "then"), [(7, 7), (11, 11), (12, 6), (5, 6)])
def test_the_cadence_comes_back_only_by_half(monkeypatch, now, then):
    assert budget_after(monkeypatch, 0.02, look=0.012, step=0.01).wanted(10, now) == then


def test_a_factor_that_changes_brings_no_two_looks_together():
    watch = SimpleNamespace(every_n_steps=2, stretch=1, last_due=None)
    due = []
    for step in range(60):
        watch.stretch = 1 + step // 12  # at each change a multiple of the new cadence may be near
        if is_due_now(watch, step):
            due.append((step, 2 * watch.stretch))
    assert all(step % 2 == 1 for step, _ in due)
    assert all(step - before >= cadence for (before, _), (step, cadence) in pairwise(due))


def test_every_batch_of_a_step_is_due():
    watch = SimpleNamespace(every_n_steps=1, stretch=3, last_due=None)
    assert [is_due_now(watch, batch // 2) for batch in range(8)] == [True] * 2 + [False] * 4 + [True] * 2


class Slow(ActivationLogger):
    def _begin_batch(self, *args):
        time.sleep(0.05)
        super()._begin_batch(*args)


def test_the_cadence_stretches_and_it_is_said_once(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr("hookboard.loops.callback.inform", said.append)
    fit(tmp_path, Toy(mlp()), batches(*[4] * 30), Slow("net.0", every_n_steps=2, max_overhead=0.05))
    steps = list(scalars(tmp_path)["activation_mean/net.0"])
    assert steps[:2] == [1, 3]
    assert len(steps) < 8
    assert all(step % 2 == 1 for step in steps)
    assert len(said) == 1
    assert said[0].startswith("Slow measures every ")
    assert "each step between two looks" in said[0]
    assert "steps instead of 2: a look takes " in said[0]


def test_where_every_step_is_due_nothing_is_said_of_steps_between(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr("hookboard.loops.callback.inform", said.append)
    fit(tmp_path, Toy(mlp()), batches(*[4] * 6), Slow("net.0", every_n_steps=1, max_overhead=0.05))
    assert len(said) == 1
    assert "each step between two looks" not in said[0]


def test_without_a_budget_every_step_stays_due(tmp_path):
    fit(tmp_path, Toy(mlp()), batches(*[4] * 8), Slow("net.0", every_n_steps=2))
    assert list(scalars(tmp_path)["activation_mean/net.0"]) == [1, 3, 5, 7]


@pytest.mark.parametrize("last", [GradientLogger, HealthMonitor])
def test_at_each_step_one_callback_tells_what_all_take(tmp_path, last):
    fit(tmp_path, Toy(mlp()), batches(*[4] * 6), Slow("net.0", every_n_steps=2), last(every_n_steps=1))
    shares = events(tmp_path).Scalars(OVERHEAD)
    assert [share.step for share in shares] == [1, 2, 3, 4, 5]
    assert all(0.5 < share.value <= 1 for share in shares if share.step % 2)


def test_one_that_is_never_due_leaves_it_to_another(tmp_path):
    fit(tmp_path, Toy(mlp()), batches(*[4] * 4), ActivationLogger(every_n_steps=99), GradientLogger(every_n_steps=1))
    assert [share.step for share in events(tmp_path).Scalars(OVERHEAD)] == [1, 2, 3]


def test_the_monitor_alone_tells_it_too(tmp_path):
    fit(tmp_path, Toy(mlp()), batches(*[4] * 4), HealthMonitor(every_n_steps=1, max_overhead=1.0))
    assert [share.step for share in events(tmp_path).Scalars(OVERHEAD)] == [1, 2, 3]


def test_the_monitor_takes_its_first_looks_as_given(tmp_path):
    monitor = HealthMonitor(every_n_steps=1, window=2, max_overhead=0.001)
    fit(tmp_path, Toy(mlp()), batches(*[4] * 30), monitor)
    looks = [share.step for share in events(tmp_path).Scalars(OVERHEAD)]
    assert looks[:7] == [1, 2, 3, 4, 5, 6, 7]
    assert len(looks) < 15


def test_the_time_in_the_running_hook_counts_at_once(monkeypatch):
    now, share = [0.0], OverheadShare()
    for file in ("clock", "loops.budget"):
        monkeypatch.setattr(f"hookboard.{file}.perf_counter", lambda: now[0])
    found = []

    class Looks:
        clock = Clock()

        @timed
        def look(self, step):
            now[0] += 3.0
            found.append(share.take(step, [self.clock]))
            now[0] += 1.0

    Looks().look(0)
    now[0] += 4.0
    Looks().look(1)
    assert found == [None, 0.5]


def test_a_callback_that_another_one_calls_tells_its_own(tmp_path):
    class Holds(Callback):
        def __init__(self):
            self.held = ActivationLogger(every_n_steps=1)

        def __getattribute__(self, name):
            return getattr(self.held, name) if name.startswith("on_") else super().__getattribute__(name)

        teardown = property(lambda self: self.held.teardown)

    fit(tmp_path, Toy(mlp()), batches(*[4] * 4), Holds())
    assert [share.step for share in events(tmp_path).Scalars(OVERHEAD)] == [1, 2, 3]


def test_the_first_share_is_that_since_the_start_of_the_fit(monkeypatch):
    now, share, clock = [0.0], OverheadShare(), Clock()
    for file in ("clock", "loops.budget"):
        monkeypatch.setattr(f"hookboard.{file}.perf_counter", lambda: now[0])
    clock.spent = 5.0  # in an earlier fit
    clock.began = now[0]
    share.begin([clock])
    now[0] += 2.0
    clock.spent, clock.began = clock.spent + now[0] - clock.began, None
    now[0] += 1.0
    assert share.take(0, [clock]) is None
    now[0] += 5.0
    assert share.take(9, [clock]) == 0.25
    now[0] += 4.0
    clock.spent += 1.0
    assert share.take(9, [clock]) is None
    assert share.take(19, [clock]) == 0.25


def test_what_is_done_once_at_the_start_is_in_the_first_share(tmp_path):
    class SlowStart(ActivationLogger):
        def _select(self, model):
            time.sleep(1.0)
            return super()._select(model)

    # Without the start a step of this net is some 60 % ours; Lightning's own start takes a few hundredths of a second.
    fit(tmp_path, Toy(mlp()), batches(*[4] * 4), SlowStart(every_n_steps=1))
    shares = [share.value for share in events(tmp_path).Scalars(OVERHEAD)]
    assert shares[0] > 0.8


def test_all_that_a_module_hook_does_counts_and_nothing_twice(monkeypatch):
    now, clock = [0.0], Clock()
    monkeypatch.setattr("hookboard.hooks.module_tap.perf_counter", lambda: now[0])

    def open_site(site):
        now[0] += 2.0

        def observe(tensor):
            now[0] += 1.0

        return observe

    module = torch.nn.Identity()
    taps = Taps({"one": module}, ["output"], open_site, clock=clock)
    taps.attach()
    module(torch.ones(2))
    assert clock.spent == 0
    taps.active = True
    module(torch.ones(2))
    assert clock.spent == 3.0
    module(torch.ones(2))
    assert clock.spent == 4.0


def test_a_hook_that_calls_another_counts_once(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("hookboard.clock.perf_counter", lambda: now[0])

    class Two:
        clock = Clock()

        @timed
        def outer(self):
            now[0] += 1.0
            self.inner()
            now[0] += 1.0

        @timed
        def inner(self):
            now[0] += 3.0

    Two().outer()
    assert Two.clock.spent == 5.0
    assert Two.clock.began is None


def test_copies_of_feature_maps_are_counted(tmp_path, monkeypatch):
    real = FeatureMapLogger._keep

    def keep(*args):
        time.sleep(0.05)
        real(*args)

    monkeypatch.setattr(FeatureMapLogger, "_keep", keep)
    logger = FeatureMapLogger(every_n_steps=1)
    net = torch.nn.Sequential(torch.nn.Unflatten(1, (1, 2, 2)), torch.nn.Conv2d(1, 2, 1))
    fit(tmp_path, Toy(net), batches(4), logger)
    assert logger.clock.spent > 0.05
