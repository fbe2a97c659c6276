"""The published training steps: each builds, takes a step, and says where its fault is."""

import inspect
import warnings
from pathlib import Path

import pytest
import torch

pytest.importorskip("sklearn")

from benchmarks.health.runner import quiet
from benchmarks.programs.steps import (
    MARK,
    Trained,
    line_of,
    names_cause,
    row_of,
    row_of_healthy,
    shown,
    sums,
    trained,
)
from benchmarks.programs.unseen import CASES, HEALTHY, LEFT_OUT

pytestmark = pytest.mark.trains


@pytest.fixture(autouse=True)
def _one_thread_and_no_news():
    threads = torch.get_num_threads()
    with warnings.catch_warnings():
        quiet()
        yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("fixed", [False, True], ids=["faulty", "fixed"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_takes_a_step_and_has_a_score(case, fixed, monkeypatch):
    monkeypatch.setattr(case.build, "steps", 2)
    assert isinstance(trained(lambda: case.build(fixed), 0, steps=1).score, float)


@pytest.mark.parametrize("known", HEALTHY, ids=lambda known: known.name)
def test_a_healthy_program_takes_a_step_and_has_a_score(known, monkeypatch):
    monkeypatch.setattr(known.build, "steps", 2)
    assert isinstance(trained(known.build, 0, steps=1).score, float)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_says_where_its_fault_is(case):
    lines = Path(inspect.getfile(case.build)).read_text().splitlines()
    assert lines[line_of(case) - 1].endswith(MARK)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_says_what_and_whence(case):
    assert case.source.startswith("https://github.com/")
    assert all(said.endswith(".") for said in (case.fault, case.fix, case.port, case.causes))
    assert case.words


def test_no_two_programs_have_the_same_name():
    names = [known.name for known in (*CASES, *HEALTHY)]
    assert len(set(names)) == len(names)
    assert not set(names) & set(LEFT_OUT)


def alarm(rule="late", evidence="It comes too late."):
    return {"rule": rule, "module": "net", "evidence": evidence, "advice": "Wait."}


def test_an_alarm_names_the_cause_by_its_words():
    case = CASES[0]
    assert names_cause(case, alarm(evidence=f"There is {case.words[0].upper()} here."))
    assert not names_cause(case, alarm())


def test_alarms_of_the_faulty_run_are_found_and_those_of_others_false():
    case, known = CASES[0], HEALTHY[0]

    def run(build, seed):
        return Trained(0.5, 1.0, [alarm()])

    rows = [row_of(case, 0, run), row_of_healthy(known, 0, run)]
    assert [row["found"] for row in rows[:1]] == [True]
    assert not rows[0]["cause"]
    assert shown(rows[0]).count("late net") == 2
    assert case.causes in shown(rows[0])
    assert sums(rows).startswith("1 faulty: found 1, with words of the cause 0; false alarms on 1 fixes and on 1 of 1")
