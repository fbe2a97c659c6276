"""The record of a run's health: what is in it, and when it is written."""

from dataclasses import asdict, replace
from itertools import pairwise

import numpy as np
import pytest
from health.looks import layers, look, reading, row

from hookboard.base.records import HEALTH, health_record
from hookboard.health.judge import Judge
from hookboard.health.page import Page
from hookboard.health.rule import Finding, Rule, Verdict
from hookboard.model.layers import Layer

NAMES = ["net.0", "net.1", "net.2"]


def judge_of(*rules):
    return Judge(list(rules), layers(*(Layer(name, "Linear", "linear", (f"{name}.weight",)) for name in NAMES)), 3)


def sizes_at(step):
    """A size for each layer; its RMS is the same in float64."""
    return np.exp(np.random.default_rng(step).normal(size=len(NAMES)))


def see(judge, step, nonfinite=""):
    rows = []
    for name, size in zip(NAMES, sizes_at(step), strict=True):
        rows += [
            reading(name, "output", [row(deviation=size, nonfinite=float(name == nonfinite))]),
            reading(f"{name}.weight", "parameter_before", [row(deviation=1.0)]),
            reading(f"{name}.weight", "parameter_update", [row(deviation=size)]),
        ]
    judge.see(look(step, rows))


def records(entry):
    return [health_record(strings) for tag, strings in entry.records.items() if tag == HEALTH]


def written(judge, page, step, **more):
    see(judge, step, **more)
    return records(page.entry(judge.run, judge.verdicts))


def test_it_holds_every_step_and_layer_as_measured():
    judge, page = judge_of(), Page(10)
    for step in range(0, 200, 10):
        see(judge, step)
    (record,) = records(page.entry(judge.run, judge.verdicts, is_over=True))
    oracle = np.stack([sizes_at(step) for step in range(0, 200, 10)], axis=1)
    assert (record.every_n_steps, record.layers, record.steps) == (10, tuple(NAMES), tuple(range(0, 200, 10)))
    np.testing.assert_array_equal(record.values["activation_rms"], oracle.astype(np.float32))
    np.testing.assert_allclose(record.values["update_ratio"], oracle, rtol=1e-6)


def test_what_was_not_finite_is_infinite_and_what_was_not_measured_is_nan():
    judge = judge_of()
    see(judge, 0)
    see(judge, 1, nonfinite="net.1")
    judge.see(look(2, [reading("net.0", "output", [row()])]))
    (record,) = records(Page(1).entry(judge.run, (), is_over=True))
    values = record.values["activation_rms"]
    assert np.isposinf(values).tolist() == [[False] * 3, [False, True, False], [False] * 3]
    assert np.isnan(values).tolist() == [[False] * 3, [False, False, True], [False, False, True]]


def test_all_verdicts_are_in_it_worst_first_and_the_quantity_in_which_that_is_seen():
    judge = judge_of()
    see(judge, 0)
    # Rules may give numbers of NumPy.
    verdicts = [Verdict("note", "mine", f"net.{i}", np.int64(i), None, "It is so.", "Leave it.") for i in range(120)]
    verdicts.append(replace(verdicts[0], rule="other"))
    page = Page(1, {"mine": "health/gradient_rms", "other": "health/update_ratio"})
    (record,) = records(page.entry(judge.run, verdicts, is_over=True))
    assert list(record.verdicts) == [asdict(verdict) | {"rows": []} for verdict in verdicts]
    assert record.headline.startswith("121 notes in 3 layers, measured only once")
    assert record.shows == "gradient_rms"


def test_each_of_its_cards_has_the_paragraph_of_the_terminal():
    judge = judge_of()
    see(judge, 0)
    alike = [Verdict("note", "mine", name, 0, None, f"It gave {i}.", "Leave it.") for i, name in enumerate(NAMES)]
    verdicts = [*alike, Verdict("note", "other", "net.0", 1, 1, "It jumped.", "Wait.")]
    (record,) = records(Page(1).entry(judge.run, verdicts, is_over=True))
    assert record.texts == (
        "note: mine in net.0 since step 0: It gave 0. The same rule and advice apply to 3 layers: net.* (3). Try: "
        "Leave it.",
        "note: other in net.0 at step 1: It jumped. Try: Wait.",
    )
    assert len(record.cards) == 2


def test_it_is_written_at_the_first_look_then_more_and_more_seldom_and_only_the_last_says_that_the_fit_is_over():
    judge, page = judge_of(), Page(1)
    found = {step + 1: record for step in range(40) for record in written(judge, page, step)}
    assert [*found] == [1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 18, 22, 27, 33, 40]
    assert not any(one.is_over for one in found.values())
    (record,) = records(page.entry(judge.run, (), is_over=True))
    assert (record.is_over, record.steps) == (True, tuple(range(40)))


def test_a_new_verdict_is_in_a_record_at_once_and_one_that_comes_and_goes_is_not_each_time():
    rule = Rule("mine", lambda run: [Finding("net.1", "It is so.", "Leave it.")] if run.now.step // 20 % 2 else [])
    judge, page = judge_of(rule), Page(1)
    at = {step: found for step in range(400) if (found := written(judge, page, step))}
    assert 20 <= next(step for step in at if at[step][0].verdicts) <= 33
    assert len(at) < 50


def test_in_a_long_run_the_columns_are_those_of_the_heat_maps():
    judge = judge_of()
    for step in range(600):
        see(judge, step)
    (record,) = records(Page(1).entry(judge.run, (), is_over=True))
    assert record.steps == tuple(judge.run.course_steps)
    assert len(record.steps) <= 256
    oracle = np.stack([sizes_at(step) for step in record.steps], axis=1)
    np.testing.assert_array_equal(record.values["activation_rms"], oracle.astype(np.float32))


def test_a_fault_is_said_once_and_the_page_is_written(monkeypatch):
    def broken(self):
        raise RuntimeError("no record today")

    monkeypatch.setattr("hookboard.base.records.HealthRecord.strings", broken)
    judge, page = judge_of(), Page(1)
    see(judge, 0)
    with pytest.warns(UserWarning, match="the health record .* is switched off.*no record today"):
        first = page.entry(judge.run, ())
    see(judge, 1)
    second = page.entry(judge.run, ())
    assert first.records == second.records == {}
    assert first.scalars
    assert second.pictures


def test_layers_that_fall_ill_one_after_the_other_do_not_fill_the_disk():
    judge, page = judge_of(), Page(1)
    verdicts, written_at = (), []
    for step in range(250):
        see(judge, step)
        verdicts += (Verdict("note", "dead_units", f"net.{step}", step, None, "it is dead", "wait", 0),)
        if records(page.entry(judge.run, verdicts)):
            written_at.append(step + 1)
    assert len(written_at) < 50
    assert all(later <= 1.2 * earlier + 5 for earlier, later in pairwise(written_at))
    assert written_at[20] < 120
