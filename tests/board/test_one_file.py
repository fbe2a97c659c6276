"""A report without a browser: its size, what is left out, and how its modules are joined."""

import base64
import gzip
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from board.logs import histogram, picture, record, scalars, write
from board.runs import picture_bytes

from hookboard.base.records import HEALTH, LAYERS, HealthRecord, LayerFacts, LayersRecord
from hookboard.board import one_file
from hookboard.board.command import main
from hookboard.board.folders import open_folders
from hookboard.board.one_file import EXPORT, IMPORT, joined, modules, packed_plotly, page_of


def write_large(folder, layers=300, steps=256):
    """A run of which no two numbers are alike, as `HealthMonitor` writes it."""
    random = np.random.default_rng(0)
    names = tuple(f"net.blocks.{i // 6}.part{i % 6}" for i in range(layers))
    quantities = ["activation_rms", "gradient_rms", "weight_rms", "weight_gradient_rms", "update_ratio"]
    quantities += ["dead_fraction", "sample_spread"]
    values = {quantity: random.lognormal(size=(layers, steps)) for quantity in quantities}
    facts = tuple(LayerFacts(name, (f"torch.nn.Part{i % 6}",), (4, 8)) for i, name in enumerate(names))
    health = HealthRecord(10, "Nothing.", (), names, tuple(range(0, 10 * steps, 10)), values)
    first = record(0, f"{LAYERS}/HealthMonitor", LayersRecord("HealthMonitor", 10, facts).strings())
    write(folder, [first, record(10 * steps, HEALTH, health.strings())])


def answers_in(page):
    """The answers of a report, by request."""
    found = re.findall(r'<script type="application/gzip" id="(\w+)">(.*?)</script>', page)
    lists, answers = (gzip.decompress(base64.b64decode(dict(found)[name])) for name in ("lists", "answers"))
    stored = json.loads(lists)
    read = json.loads(answers, object_hook=lambda one: stored[one["$"]] if one.keys() == {"$"} else one)
    return {tuple(request): answer for request, answer in read}


@pytest.fixture
def report(tmp_path):
    def make(*events):
        write(tmp_path / "run", events)
        return answers_in(page_of(*open_folders([tmp_path / "run"])))

    return make


def test_a_run_of_300_layers_has_all_its_steps_in_less_than_5_mb(tmp_path, monkeypatch, capsys):
    write_large(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    assert main(["report", "run"]) == 0
    size = (tmp_path / "report.html").stat().st_size
    assert size < 5_000_000
    assert capsys.readouterr().out == f"report.html: run, {size / 1e6:.1f} MB\n"
    answers = answers_in((tmp_path / "report.html").read_text())
    assert len(answers["map", "run", "health/activation_rms"]["steps"]) == 256


def test_a_run_that_would_be_too_large_has_fewer_steps(tmp_path, monkeypatch):
    write_large(tmp_path / "run", layers=40)
    limit = 300_000 + len(packed_plotly()) * 4 // 3
    monkeypatch.setattr(one_file, "MAX_BYTES", limit)
    page = page_of(*open_folders([tmp_path / "run"]))
    steps = answers_in(page)["map", "run", "health/activation_rms"]["steps"]
    assert len(page) <= limit
    assert 20 <= len(steps) < 256
    assert (steps[0], steps[-1]) == (0, 2550)


def test_numbers_have_four_digits(report):
    answers = report(*[scalars(step, {"activation_std/a": 1 / (step + 3)}) for step in range(10)])
    assert answers["map", "run", "train/activation/std"]["values"][0][:2] == [0.3333, 0.25]


def test_a_picture_is_the_last_of_its_tag_and_one_that_is_none_is_left_out(report):
    data = [picture_bytes("PNG"), picture_bytes("JPEG")]
    shown = [picture(step, "cam/a/gradcam", one) for step, one in enumerate(data)]
    answers = report(scalars(0, {"activation_std/a": 1.0}), *shown, picture(0, "kernels/a", b"GIF89a"))
    (only,) = answers["layer", "run", "a"]["pictures"]
    assert only["steps"] == [1]
    assert only["keys"] == [f"data:image/jpeg;base64,{base64.b64encode(data[1]).decode()}"]
    (warning,) = answers["run", "run"]["warnings"]
    assert warning.startswith("This report leaves out 1 picture to stay small")


def test_histograms_are_thinned_and_those_without_room_left_out(report, monkeypatch):
    monkeypatch.setattr("hookboard.board.plugin.MAX_HISTOGRAM_NUMBERS", 3 * 30 * 2)
    given = [histogram(step, f"activations/{n}", [0.0, 1.0, 2.0], [step, 1]) for step in range(90) for n in "ab"]
    answers = report(scalars(0, {"activation_std/a": 1.0, "activation_std/b": 1.0}), *given)
    steps = answers["histogram", "run", "activations/a"]["steps"]
    assert (len(steps), steps[0], steps[-1]) == (30, 0, 89)
    assert ("histogram", "run", "activations/b") not in answers
    assert answers["layer", "run", "b"]["histograms"] == []
    assert "1 histogram" in answers["run", "run"]["warnings"][0]


def test_of_more_runs_than_a_report_holds_it_shows_the_worst(tmp_path, capsys):
    verdict = {"severity": "alarm", "rule": "odd", "module": "a", "since": 0}
    health = HealthRecord(1, "1 alarm.", (verdict,), ("a",), (0,), {"activation_rms": np.ones((1, 1))})
    for number in range(9):
        sick = [record(0, HEALTH, health.strings())] if number == 8 else []
        write(tmp_path / "logs" / str(number), [scalars(0, {"activation_std/a": 1.0}), *sick])
    assert main(["report", str(tmp_path / "logs"), "-o", str(tmp_path / "x.html")]) == 0
    files, cut = capsys.readouterr().out.splitlines()
    assert f": {', '.join(f'logs/{name}' for name in (8, 0, 1, 2, 3, 4, 5, 6))}, " in files
    assert cut == "These are the 8 worst of 9 runs."


def test_every_import_and_export_of_the_page_is_understood_and_a_module_stands_after_those_that_it_imports():
    code = joined(modules())
    for name, source in modules().items():
        lines = source.splitlines()
        assert sum(line.startswith("import ") for line in lines) == len(IMPORT.findall(source)), name
        assert sum(line.startswith("export ") for line in lines) == len(EXPORT.findall(source)), name
        assert "</script" not in source, name
        for _, other in IMPORT.findall(source):
            if f'modules["{name}"] =' in code:
                assert code.index(f'modules["{other}"] =') < code.index(f'modules["{name}"] =')
    assert 'modules["index.js"]' not in code  # it is for TensorBoard


@pytest.mark.spawns
@pytest.mark.skipif(sys.platform != "linux", reason="the locale C has another encoding there alone")
def test_a_report_is_the_same_where_the_system_has_another_encoding(logs, tmp_path):
    code = "import sys; from hookboard.board.command import main; sys.exit(main(sys.argv[1:]))"
    pages = []
    for utf8 in "01":
        environment = os.environ | {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": utf8}
        given = [sys.executable, "-c", code, "report", str(logs / "sick"), "-o", str(tmp_path / utf8)]
        done = subprocess.run(given, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        pages.append((tmp_path / utf8).read_bytes())
    assert pages[0] == pages[1]
