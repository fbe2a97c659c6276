"""The ported programs: each builds and trains, says where it comes from, and is scored in terms that compare."""

import math
import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

pytest.importorskip("sklearn")

from benchmarks.health.runner import quiet
from benchmarks.programs import rows
from benchmarks.programs.__main__ import sum_of
from benchmarks.programs.catalogue import HELD_OUT, LEFT_OUT, NEWER, POSTS
from benchmarks.programs.parts import r2, sgd, stack
from benchmarks.programs.trial import Program, Trained, batches, built, trained

pytestmark = pytest.mark.trains

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


@pytest.mark.parametrize("fixed", [False, True], ids=["faulty", "fixed"])
@pytest.mark.parametrize("post", POSTS + HELD_OUT + NEWER, ids=lambda post: post.name)
def test_a_program_takes_two_steps(post, fixed):
    program = built(post, fixed, seed=0)
    losses = []

    def kept(outputs, targets):
        losses.append(program.loss(outputs, targets))
        return losses[-1]

    trained(replace(program, loss=kept, steps=2), 0, None)
    assert len(losses) == 2
    assert all(math.isfinite(loss) for loss in losses) or (not fixed and "nonfinite" in post.causes)


@pytest.mark.parametrize("post", POSTS + HELD_OUT + NEWER, ids=lambda post: post.name)
def test_a_program_says_its_source_its_fault_its_fix_and_at_most_three_causes(post):
    assert post.source.startswith(SOURCES)
    assert post.fault.endswith(".")
    assert post.fix
    assert 1 <= len(post.causes) <= 3


def test_no_program_is_there_twice_nor_left_out_as_well():
    names = [post.name for post in POSTS + HELD_OUT + NEWER]
    assert len(set(names)) == len(names)
    assert not set(names) & set(LEFT_OUT)


def test_a_program_is_in_one_set():
    assert POSTS
    assert HELD_OUT
    assert NEWER
    assert {post.build.__module__ for post in NEWER} == {"benchmarks.programs.newer"}
    assert not {post.name for post in NEWER} & {post.name for post in POSTS + HELD_OUT}


def test_fault_and_fix_start_from_the_same_draw():
    post = next(post for post in POSTS if post.name == "48221692")
    assert torch.equal(built(post, False, 3).inputs, built(post, True, 3).inputs)


def test_an_epoch_goes_over_all_samples_and_the_steps_are_as_many_as_asked():
    drawn = [inputs.flatten().tolist() for inputs, _ in batches(tiny(steps=4))]
    assert [len(one) for one in drawn] == [2, 2, 1, 2]
    assert sorted(drawn[0] + drawn[1] + drawn[2]) == [0, 1, 2, 3, 4]


def test_a_score_that_is_no_number_is_the_worst():
    program = tiny()
    nn.init.constant_(program.net[0].weight, math.nan)
    assert trained(program, 0, None).score == -math.inf


def test_the_sums_count_what_was_found_named_and_cried_wolf():
    rows = [
        {"found": True, "cause": True, "false_alarm": False, "repaired": True, "followed": "clip gradients"},
        {"found": True, "cause": False, "false_alarm": True, "repaired": False, "followed": ""},
    ]
    assert sum_of("programs", rows) == (
        "2 programs: found 2, cause right 1, repaired by the first advice 1 (1 could be followed by a script),"
        " false alarms on fixes 1"
    )


def judged_with_a_fix_that_scores(monkeypatch, scores):
    """The row of a program whose fault scores 0 on each seed, and its fix these."""

    def trained_as_told(program, seed, monitor, every=50):
        alarms = [{"rule": "spike", "module": "", "advice": "think"}] if monitor else []
        return Trained(scores[seed] if program.is_fixed else 0.0, 0.0, alarms)

    monkeypatch.setattr(rows, "trained", trained_as_told)
    monkeypatch.setattr(rows, "built", lambda post, fixed, seed: SimpleNamespace(is_fixed=fixed, steps=1))
    monkeypatch.setattr(rows, "followed", lambda program, advice, module: None)
    return rows.judged("31880720", every=50)


def test_an_alarm_on_a_fix_that_works_is_false(monkeypatch):
    row = judged_with_a_fix_that_scores(monkeypatch, {0: 0.9, 1: 0.9, 2: 0.0})
    assert row["false_alarm"]
    assert row["harmed"] == [0, 1]


def test_an_alarm_on_a_fix_that_does_not_work_here_is_not_false(monkeypatch):
    row = judged_with_a_fix_that_scores(monkeypatch, {0: 0.05, 1: 0.9, 2: 0.9})
    assert not row["false_alarm"]
    assert row["harmed"] == [1, 2]
