"""The benchmark for GPUs, tried out on the CPU: all of it runs but the calls of CUDA."""

import sys
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.large, pytest.mark.compiles]

FOLDER = str(Path(__file__).parents[2] / "benchmarks")


@pytest.fixture
def benchmark(monkeypatch):
    """The module of the benchmark, which imports another from the folder of the script."""
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setenv("TRITON_CACHE_DIR", "")  # what it sets itself is undone
    yield __import__("gpu")
    for name in ("gpu", "overhead"):
        sys.modules.pop(name, None)


def test_the_table_is_printed_and_no_value_is_wrong(benchmark, capsys):
    benchmark.main(["--device", "cpu", "--rounds", "2", "--steps", "1"])
    printed = capsys.readouterr().out
    for row in (
        "first due step, with no kernel on disk: ",
        "values made in CUDA graphs: largest relative deviation ",
        "| both with histograms, due on every step | ",
        "| `HealthMonitor`, due on every step | ",
    ):
        assert row in printed
    table = [line for line in printed.splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(benchmark.variants())


def test_values_that_are_wrong_are_found(benchmark, monkeypatch):
    truth = benchmark.true_values
    monkeypatch.setattr(benchmark, "true_values", lambda *args: {site: 1.01 * x for site, x in truth(*args).items()})
    assert benchmark.deviation_in_graphs(torch.device("cpu"), {"accelerator": "cpu"}) > 5e-3
