"""Ranks that come apart learn it at once, each by an error; no process ends, and none waits."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.spawns

GONE, LEFT = "this rank no longer takes part", "another rank has stopped measuring or has exited"


@pytest.fixture(scope="module")
def apart(saved_by):
    """What each of two ranks has learnt in a case, and how many seconds that took."""
    return saved_by("apart", ["elsewhere", "broken", "left"])


def test_ranks_at_different_points_exchange_nothing_more(apart):
    for learnt, _ in apart["elsewhere"]:
        expected = ["the ranks are no longer at the same point of the run", GONE]
        assert learnt == [f"RanksLostError: {text}" for text in expected]


def test_after_a_fault_in_an_exchange_the_ranks_exchange_nothing_more(apart):
    (first, _), (second, _) = apart["broken"]
    assert first == [f"RanksLostError: {LEFT}", f"RanksLostError: {GONE}"]
    assert second == ["BrokenOnPurposeError: ", f"RanksLostError: {GONE}"]


def test_a_rank_that_leaves_is_noticed_though_a_process_that_it_forked_lives_on(apart):
    (first, seconds), _ = apart["left"]
    assert first == [f"RanksLostError: {LEFT}", f"RanksLostError: {GONE}"]
    assert seconds < 30


def test_a_process_ends_well_in_the_middle_of_an_exchange(python, tmp_path):
    given = [Path(__file__).with_name("apart.py"), "exits", tmp_path / "store"]
    start = time.perf_counter()
    both = [subprocess.Popen([each, *given, str(rank)]) for rank, each in enumerate([sys.executable, python])]
    assert [process.wait(timeout=120) for process in both] == [0, 0]
    assert time.perf_counter() - start < 60, "it has not waited for the other rank"
