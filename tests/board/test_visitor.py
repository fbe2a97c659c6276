"""What a visitor of the tab may ask for costs about a second at most: it is answered by then, or refused."""

import threading
import time

import pytest
from board import logs

from hookboard.board import selecting

NAMES = [f"encoder.layers.{i}.{'a' * 40}" for i in range(300)]

SLOW = {
    "repetitions of repetitions": "re:.*(a+)+b",
    "alternatives that are alike": "re:(?:.|..|.)*b",
    "counts of counts": "re:(((.{0,99}){0,99}){0,99}){0,99}b",
}


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    folder = tmp_path_factory.mktemp("visited")
    names = [*NAMES, 60 * "a", 40 * "a." + "a"]
    logs.write(folder, [logs.scalars(0, {f"activation_std/{name}": 1.0 for name in names})])
    with logs.slow(folder) as board:
        yield board


def asked(board, **given):
    """The answer, and how long it took."""
    start = time.monotonic()
    status, answer = board.ask("select", run=".", **given)
    return status, answer, time.monotonic() - start


@pytest.mark.spawns
@pytest.mark.parametrize("pattern", SLOW.values(), ids=SLOW)
def test_an_expression_that_takes_too_long_is_refused(board, pattern):
    status, answer, seconds = asked(board, modules=[pattern, "**"])
    assert (status, seconds < 4) == (400, True)
    assert f"layers: {pattern!r} takes too long to match: write it without" in answer["error"]


@pytest.mark.spawns
def test_others_are_answered_while_an_expression_is_matched(board):
    asked(board)  # what is read once is there
    thread = threading.Thread(target=asked, args=(board,), kwargs={"modules": SLOW["repetitions of repetitions"]})
    thread.start()
    try:
        time.sleep(0.2)
        assert asked(board, modules="**.3.*")[0] == 200
        assert thread.is_alive()
    finally:
        thread.join()


@pytest.mark.spawns
@pytest.mark.parametrize("pattern", ["re:(", "re:" + "(" * 900, "re:a{99999999999}"], ids=["open", "deep", "large"])
def test_what_is_no_regular_expression_is_refused(board, pattern):
    status, answer, _ = asked(board, modules=pattern)
    assert status == 400
    assert answer["error"].startswith(f"layers: {pattern!r} is not a regular expression")


@pytest.mark.spawns
def test_an_expression_selects_what_it_matches(board):
    assert asked(board, modules=r"re:encoder\.layers\.[0-9]\..*")[1]["names"] == NAMES[:10]


def test_more_expressions_than_may_run_at_once_are_refused(board, monkeypatch):
    monkeypatch.setattr(selecting, "_free", threading.BoundedSemaphore(1))
    with selecting._free:
        status, answer, _ = asked(board, modules="re:.*")
    assert (status, "waited too long" in answer["error"]) == (400, True)


@pytest.mark.spawns
def test_an_expression_that_no_process_can_match_is_refused(board, monkeypatch):
    monkeypatch.setattr(selecting.sys, "executable", "/nowhere/python")
    status, answer, _ = asked(board, modules="re:.*")
    assert (status, "could not be matched" in answer["error"]) == (400, True)


@pytest.mark.parametrize("pattern", [16 * "*" + "x", 30 * "*a" + "b", 30 * "**.*." + "**x"])
def test_a_pattern_of_many_stars_is_answered_at_once(board, pattern):
    status, answer, seconds = asked(board, modules=pattern)
    assert (status, "matches no layer" in answer["error"], seconds < 2) == (400, True, True)


@pytest.mark.parametrize(("option", "field"), [("modules", "layers"), ("types", "types")])
def test_a_pattern_or_type_of_many_letters_is_refused(board, option, field):
    status, answer, seconds = asked(board, **{option: 100_000 * "a*"})
    assert (status, len(answer["error"]) < 200, seconds < 1) == (400, True, True)
    assert answer["error"].startswith(f"{field}: ")
    assert answer["error"].endswith("has 200000 characters; up to 1000 are matched.")


@pytest.mark.parametrize("option", ["modules", "types"])
def test_more_patterns_or_types_than_can_be_matched_in_time_are_refused(board, option):
    status, answer, seconds = asked(board, **{option: 30_000 * ["!**.*.**"]})
    assert (status, "error" in answer, seconds < 4) == (400, True, True)


def test_a_name_of_many_letters_is_looked_for_in_vain_at_once(board):
    start = time.monotonic()
    status, _ = board.ask("layer", run=".", layer=" ".join(map(str, range(20_000))))
    assert (status, time.monotonic() - start < 1) == (404, True)
