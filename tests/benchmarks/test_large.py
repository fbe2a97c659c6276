"""The benchmark of a large model, tried out on a small one."""

import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.large, pytest.mark.spawns]

FOLDER = str(Path(__file__).parents[2] / "benchmarks")


@pytest.fixture
def benchmark(monkeypatch, python_is_warm):
    monkeypatch.syspath_prepend(FOLDER)
    yield __import__("large")
    for name in ("large", "overhead"):
        sys.modules.pop(name, None)


def test_the_row_of_a_callback_has_its_extra_memory_and_time(benchmark, capsys):
    benchmark.main(["--weights", "2e5", "--steps", "2", "--only", "ParameterLogger"])
    title, _, head, rule, row = capsys.readouterr().out.splitlines()
    assert title.startswith("181,440 weights in bfloat16")
    assert len({line.count("|") for line in (head, rule, row)}) == 1
    _, name, extra, *_ = (cell.strip() for cell in row.split("|"))
    assert name == "`ParameterLogger`"
    assert extra.endswith(" MB")
