"""The programs: each builds and trains, says where it comes from, and is scored in terms that compare."""

import inspect
import math
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

pytest.importorskip("sklearn")

from benchmarks.health.runner import quiet
from benchmarks.programs import rows
from benchmarks.programs.__main__ import shown, sums
from benchmarks.programs.catalogue import LEFT_OUT, SETS
from benchmarks.programs.parts import r2, sgd, stack
from benchmarks.programs.program import Case, Healthy, Ported, Program, batches, trained

pytestmark = pytest.mark.trains

PROGRAMS = [known for programs in SETS.values() for known in programs]
CASES = [known for known in PROGRAMS if isinstance(known, Case)]
HEALTHY = [known for known in PROGRAMS if isinstance(known, Healthy)]

SOURCES = (
    "Wardat-ISU/DeepLocalize@297bc34:",
    "shiningrain/AUTOTRAINER@03a463e:",
    "ArabelaTso/DeepFD@9fe0895:",
    "DeepDiagnosis/ICSE2022@500b017:",
    "ForeverZyh/TensorFlow-Program-Bugs@158ba0a:",
    "Hong-Shuo/PYSIASSIST@f54ef5f:",
    "OrderLab/TrainCheck-Evaluation-Workloads@2de9268:",
    "BerkeleyHCI/umlaut@68c2a02:",
    "https://discuss.pytorch.org/t/",
    "https://github.com/",
    "https://openillumi.com/",
)


@pytest.fixture(autouse=True)
def _one_thread_and_no_news():
    threads = torch.get_num_threads()
    with warnings.catch_warnings():
        quiet()
        yield
    torch.set_num_threads(threads)


def tiny(steps=3, samples=5, batch_size=2):
    inputs = torch.arange(float(samples)).unsqueeze(1)
    return Program(stack(1, 1), mse_loss, inputs, inputs, sgd(), batch_size, steps, r2)


def shortened(build):
    """Make what builds a learner build one that draws only two batches."""

    def short(*fixed):
        learner = build(*fixed)
        if isinstance(learner, Ported):
            learner.program.steps = 2
        else:
            learner.steps = 2
        return learner

    return short


@pytest.mark.parametrize("fixed", [False, True], ids=["faulty", "fixed"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_takes_a_step_and_has_a_score(case, fixed):
    done = trained(lambda: shortened(case.build)(fixed), 0, steps=1)
    assert isinstance(done.score, float)


@pytest.mark.parametrize("known", HEALTHY, ids=lambda known: known.name)
def test_a_healthy_program_takes_a_step_and_has_a_score(known):
    assert isinstance(trained(shortened(known.build), 0, steps=1).score, float)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_says_its_source_its_fault_its_fix_and_what_would_be_right(case):
    assert case.source.startswith(SOURCES)
    assert case.fault.endswith(".")
    assert case.fix
    assert 1 <= len(case.causes) <= 3 or case.words


@pytest.mark.parametrize("case", SETS["other_kinds"], ids=lambda case: case.name)
def test_a_case_with_a_step_of_its_own_marks_the_line_of_its_fault(case):
    assert inspect.getsource(case.build).count("# fault\n") == isinstance(case, Case)


def test_no_program_is_there_twice_nor_left_out_as_well():
    names = [known.name for known in PROGRAMS]
    assert len(set(names)) == len(names)
    assert not set(names) & set(LEFT_OUT)


def test_fault_and_fix_start_from_the_same_draw_and_get_the_same_batches():
    case = next(case for case in CASES if case.name == "48221692")
    drawn = []
    for fixed in (False, True):
        torch.manual_seed(3)
        drawn.append(torch.cat([inputs for inputs, _ in case.build(fixed).loader()]))
    assert torch.equal(*drawn)


def test_an_epoch_goes_over_all_samples_and_the_steps_are_as_many_as_asked():
    drawn = [inputs.flatten().tolist() for inputs, _ in batches(tiny(steps=4))]
    assert [len(one) for one in drawn] == [2, 2, 1, 2]
    assert sorted(drawn[0] + drawn[1] + drawn[2]) == [0, 1, 2, 3, 4]


def test_a_score_that_is_no_number_is_the_worst():
    program = tiny()
    nn.init.constant_(program.net[0].weight, math.nan)
    assert trained(lambda: Ported(program), 0).score == -math.inf


def alarm(rule="late", evidence="It comes too late."):
    return {"severity": "alarm", "rule": rule, "module": "net", "evidence": evidence, "advice": "Wait."}


def row_of(monkeypatch, case, score_of_fix):
    """The row of a case whose fault scores 0 and its fix this, where each has an alarm."""

    def watched_as_told(build, seed, with_monitor):
        return (score_of_fix if build() else 0.0), 1.0, [alarm()]

    monkeypatch.setitem(rows.SETS, "told", [SimpleNamespace(**{**vars(case), "name": "told", "build": bool})])
    monkeypatch.setattr(rows, "watched", watched_as_told)
    return rows.judged("told")


def test_an_alarm_on_a_fix_that_works_is_false(monkeypatch):
    row = row_of(monkeypatch, CASES[0], 0.9)
    assert row["found"]
    assert row["false_alarm"]
    assert shown(row).count("late net") == 2


def test_an_alarm_on_a_fix_that_does_not_work_here_is_not_false(monkeypatch):
    assert not row_of(monkeypatch, CASES[0], 0.05)["false_alarm"]


def test_the_first_alarm_names_the_cause_by_its_rule():
    case = SimpleNamespace(causes=("late",), words=())
    assert rows.names_cause(case, [alarm(), alarm("early")])
    assert not rows.names_cause(case, [alarm("early"), alarm()])


def test_an_alarm_names_the_cause_by_its_words():
    case = SimpleNamespace(causes=(), words=("detach",))
    assert rows.names_cause(case, [alarm(), alarm(evidence="It is DETACHED.")])
    assert not rows.names_cause(case, [alarm()])


def test_the_sums_count_what_was_found_named_and_cried_wolf():
    given = [
        {"found": True, "cause": True, "false_alarm": False},
        {"found": True, "cause": False, "false_alarm": True},
        {"false_alarm": True},
    ]
    assert list(sums("told", given)) == [
        "told: of 2 faulty programs found 2, cause right 1; false alarms on 1 fixes",
        "told: false alarms on 1 of 1 healthy programs",
    ]
