"""The plugin inside TensorBoard: as a user starts it, with wrong questions, with providers that fail."""

import gzip
import json
import re
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from unittest.mock import Mock
from urllib.request import urlopen

import pytest
from board import logs, runs
from board.browser import tensorboard
from board.logs import asker

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what TensorBoard comes with
    from tensorboard.errors import NotFoundError


SERIES = "train/activation/std"

WRONG = {
    "no run": ("run", {}, 400, "needs a non-empty parameter 'run'"),
    "an unknown run": ("run", {"run": "nested/record"}, 404, "did you mean 'nested/recorded'"),
    "a run that is not ours": ("run", {"run": "theirs"}, 404, "run 'theirs' has no hookboard data"),
    "no series": ("map", {"run": "."}, 400, "needs a non-empty parameter 'series'; got run"),
    "an unknown series": ("map", {"run": ".", "series": "train/activation/st"}, 404, f"did you mean '{SERIES}'"),
    "too many columns": ("map", {"run": ".", "series": SERIES, "columns": "2001"}, 400, "from 1 to 2000"),
    "columns in other digits": ("map", {"run": ".", "series": SERIES, "columns": "\u00b2"}, 400, "columns="),
    "an unknown second series": (
        "map",
        {"run": ".", "series": SERIES, "against": ".", "against_series": "x"},
        404,
        "unknown series 'x'",
    ),
    "an unknown layer": ("layer", {"run": ".", "layer": "net.00"}, 404, "did you mean 'net.0'"),
    "an unknown histogram": ("histogram", {"run": ".", "tag": "x"}, 404, "unknown histogram 'x'"),
    "an unknown key": ("picture", {"key": "x"}, 400, "no such picture"),
}


@pytest.mark.parametrize(("path", "given", "code", "text"), WRONG.values(), ids=WRONG)
def test_a_wrong_question_is_answered_by_a_sentence(board, path, given, code, text):
    status, answer = board.ask(path, **given)
    assert status == code
    assert text in answer["error"]
    assert list(answer) == ["error"]


def test_only_pictures_are_served_as_pictures(board):
    _, answer = board.ask("layer", run="nested/recorded", layer="net.stem")
    (pictures,) = answer["pictures"]
    status, said = board.ask("picture", key=pictures["keys"][0])
    assert (status, said["error"].endswith("is not a PNG or JPEG picture.")) == (400, True)


@pytest.mark.parametrize("path", ["runs", "map", "plotly.js"])
def test_answers_are_packed_only_for_who_takes_that(slow_board, path):
    given = {"run": ".", "series": SERIES}
    plain = slow_board.client.get(f"/{path}", query_string=given)
    packed = slow_board.client.get(f"/{path}", query_string=given, headers={"Accept-Encoding": "gzip"})
    assert "Content-Encoding" not in plain.headers
    assert packed.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed.data) == plain.data


def test_what_is_served_has_the_headers_that_browsers_need(slow_board):
    served = slow_board.get("plotly.js")
    assert served.mimetype == "text/javascript"
    assert b"* plotly.js (cartesian" in served.data[:200]
    assert int(re.search(r"max-age=(\d+)", served.headers["Cache-Control"])[1]) >= 3600
    for path in ("plotly.js", "runs", "picture"):  # no browser may guess what an answer is
        assert slow_board.get(path).headers["X-Content-Type-Options"] == "nosniff"
    assert slow_board.client.post("/runs").status_code == 405


@pytest.mark.parametrize(
    ("events", "hint"), [([], "point TensorBoard's --logdir"), (runs.RUNS["theirs"], "Add one of its callbacks")]
)
def test_a_log_directory_without_runs_of_ours_says_what_to_do_and_does_not_open_the_tab(tmp_path, events, hint):
    if events:
        logs.write(tmp_path, events)
    with logs.slow(tmp_path) as board:
        status, answer = board.ask("runs")
        assert (status, answer["runs"], hint in answer["hint"]) == (200, [], True)
        assert not board.plugin.is_active()


FAILING = SimpleNamespace(read_last_scalars=Mock(side_effect=NotFoundError("no such experiment")))


@pytest.mark.parametrize("provider", [None, SimpleNamespace(), FAILING])
def test_a_provider_that_lacks_something_leaves_the_tab_shut(provider):
    board = asker(provider)
    assert not board.plugin.is_active()
    assert board.ask("runs")[1]["runs"] == []


def test_a_fault_of_ours_is_said_and_logged(caplog):
    board = asker(SimpleNamespace(read_last_scalars=Mock(side_effect=RuntimeError("a wire is loose"))))
    for _ in range(2):  # what could not be made is made at the next request
        status, answer = board.ask("runs")
        assert status == 500
        assert "a wire is loose" in answer["error"]
    assert "could not answer" in caplog.text


def test_many_requests_at_once_read_a_series_once(tmp_path):
    logs.write(tmp_path, [logs.scalars(0, {"activation_std/net": 1.0})])
    with logs.slow(tmp_path) as board:
        provider = board.plugin._provider
        read = provider.read_scalars
        slowly = Mock(side_effect=lambda *given, **options: time.sleep(0.1) or read(*given, **options))
        provider.read_scalars = slowly
        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(lambda _: board.ask("map", run=".", series=SERIES), range(8)))
    assert slowly.call_count == 1
    assert [answer["values"] for _, answer in answers] == 8 * [[[1.0]]]


@pytest.mark.spawns
@pytest.mark.parametrize("flag", ["--load_fast=true", "--load_fast=false"])
def test_the_tab_opens_by_itself(tmp_path, flag):
    logs.write(tmp_path / "one", [logs.scalars(0, {"activation_std/net": 1.0})])
    with tensorboard(tmp_path, flag) as address:

        def get(path):
            with urlopen(f"{address}{path}") as answer:
                return answer.read()

        def listing():
            return json.loads(get("data/plugins_listing"))

        logs.until(lambda: listing()["hookboard"]["enabled"])
        tab = listing()["hookboard"]
        assert tab["tab_name"] == "Hookboard"
        assert tab["loading_mechanism"]["module_path"].endswith("/data/plugin/hookboard/index.js")
        assert b"export" in get("data/plugin/hookboard/index.js")
        answer = json.loads(get(f"data/plugin/hookboard/map?run=one&series={SERIES}"))
        assert answer["values"] == [[1.0]]
