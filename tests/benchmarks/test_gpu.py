"""The benchmark for GPUs, tried out on the CPU: all of it runs but the calls of CUDA."""

import sys
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.large, pytest.mark.compiles]

FOLDER = str(Path(__file__).parents[2] / "benchmarks")


@pytest.fixture
def benchmark(monkeypatch):
    """The modules of the benchmark, which import each other from the folder of the script."""
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setenv("TRITON_CACHE_DIR", "")  # what it sets itself is undone
    yield __import__("gpu")
    for name in ("gpu", "gpu_checks", "gpu_tasks", "overhead", "tools"):
        sys.modules.pop(name, None)


@pytest.fixture
def checks(benchmark):
    return sys.modules["gpu_checks"]


def test_every_table_is_printed_and_no_value_is_wrong(benchmark, capsys):
    benchmark.main(["--device", "cpu", "--rounds", "2", "--steps", "1"])
    printed = capsys.readouterr().out
    for row in (
        "| both with histograms, due on every step | ",
        "| `HealthMonitor`, due on every step | ",
        "| first due step with no kernel on disk, ",
        "| waits in due steps, tiny transformer, 2 x 8 tokens | of hookboard in training 0, ",
        "| values made in CUDA graphs (`reduce-overhead`): largest relative deviation | ",
        "| 1e+03 | bfloat16 | ",
    ):
        assert row in printed
    tables = [part.splitlines() for part in printed.split("\n\n") if part.startswith("|")]
    assert [len({line.count("|") for line in table}) for table in tables] == [1] * 4


def test_values_that_are_wrong_are_found(checks, monkeypatch):
    truth = checks.true_values
    monkeypatch.setattr(checks, "true_values", lambda *args: {site: 1.01 * x for site, x in truth(*args).items()})
    assert checks.deviation(checks.aside, torch.device("cpu"), {"accelerator": "cpu"}) > 5e-3
