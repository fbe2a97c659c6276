"""Early warning: each program takes a step, and a doubling of the loss is told from noise."""

import math
import warnings
from dataclasses import replace

import pytest
import torch

pytest.importorskip("sklearn")

from benchmarks.early.__main__ import ahead, first_warning, sums, tables
from benchmarks.early.loss_alone import SMOOTHED, loss_rows
from benchmarks.early.program import PROGRAMS, SPAN, Program, doubling, trained
from benchmarks.health.runner import quiet

DIVERGENT = [known for known in PROGRAMS if known.kind != "healthy"]


@pytest.mark.trains
@pytest.mark.parametrize("known", PROGRAMS, ids=lambda known: known.name)
def test_a_program_takes_a_step(known):
    threads = torch.get_num_threads()
    with warnings.catch_warnings():
        quiet()
        losses = trained(Program(known.name, known.kind, lambda: replace(known.build(), steps=2)))
    torch.set_num_threads(threads)
    assert all(map(math.isfinite, losses))


def test_there_are_thirty_of_each_sort_and_five_of_each_kind():
    kinds = [known.kind for known in DIVERGENT]
    assert len(PROGRAMS) - len(kinds) == 30
    assert {kind: kinds.count(kind) for kind in kinds} == dict.fromkeys(kinds, 5)
    assert len(set(kinds)) == 6
    assert len({known.name for known in PROGRAMS}) == 60


def test_a_loss_doubles_where_it_exceeds_twice_the_lowest_median_and_stays():
    assert doubling([1.0] * 50 + [1.9] * 10 + [2.1] * 40) == 60
    assert doubling([1.0] * 50 + [2.0] * 50) is None


def test_a_slow_rise_is_measured_from_the_lowest_median():
    assert doubling([1.0] * 50 + [1 + 0.01 * step for step in range(1, 201)]) == 150


def test_a_loss_that_is_not_finite_has_doubled():
    assert doubling([1.0] * 50 + [math.nan] * 50) == 50
    assert doubling([math.nan] * 50) == 0


def test_a_loss_that_comes_down_again_has_not_doubled():
    assert doubling([1.0] * 50 + [9.0] * (SPAN // 2 - 1) + [1.0] * 50) is None
    assert doubling([1.0] * 50 + [9.0] * (2 * SPAN) + [1.0] * 200) is None


def test_a_loss_near_zero_does_not_double_by_noise():
    assert doubling([1.0] * 20 + [1e-4] * 50 + [0.09] * 50) is None
    assert doubling([1.0] * 20 + [1e-4] * 50 + [0.11] * 50) == 70


def row(kind, doubles, *said):
    each = [{"rule": rule, "severity": "note", "step": step, "warns": warns} for rule, step, warns in said]
    return {"name": f"{kind} {doubles}", "kind": kind, "doubles": doubles, "said": {"default": each, "every 10": each}}


def test_steps_ahead_are_counted_from_the_first_verdict_that_warns():
    assert ahead(row("rate", 100, ("adapters", 10, False), ("spike", 60, True), ("spike", 80, True)), "default") == 40
    assert ahead(row("rate", 100, ("adapters", 10, False)), "default") is None
    assert first_warning(row("healthy", None, ("spike", 60, True)), "default", ["alarm"]) is None


def test_what_comes_too_late_is_not_in_time_and_noisy_ones_are_counted():
    rows = [row("rate", 100, ("spike", 100, True)), row("rate", 90, ("spike", 50, True))]
    *_, last, name = sums([*rows, row("healthy", None, ("spike", 60, True))], "default")
    assert last == "default: 1 of 2 in time; 1 of 1 noisy, 0 by an alarm"
    assert name == "    healthy None"
    assert sum("**+40**" in line for line in tables(rows)) == 1


def test_the_loss_alone_warns_of_a_rise_in_time_and_not_of_even_noise():
    rising = [1.0, 1.1] * 50 + [1.0 + 0.2 * step for step in range(60)]
    found = [
        {"kind": "rate", "doubles": 150, "losses": rising},
        {"kind": "healthy", "doubles": None, "losses": [1.0, 1.1] * 100},
    ]
    assert {tuple(row.split(" | ")[2:]) for row in [*loss_rows(found)][2:]} == {("1", "0 |")}


def test_a_loss_that_doubles_before_enough_losses_are_known_is_not_warned_of_in_time():
    losses = [1.0] * 60 + [3.0] * (60 + max(SMOOTHED))
    found = [{"kind": "rate", "doubles": 60, "losses": losses}]
    assert {row.split(" | ")[2] for row in [*loss_rows(found)][2:]} == {"0"}
