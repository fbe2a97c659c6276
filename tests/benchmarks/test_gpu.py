"""The benchmark for GPUs, tried out on the CPU: all of it runs but the calls of CUDA."""

import sys
import threading
import warnings
from pathlib import Path

import pytest
import torch
from toys import Toy, batches, fit, mlp

from hookboard import ActivationLogger, Statistic

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


def warned(x):
    warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
    return x.sum()


def test_a_wait_in_a_hook_of_hookboard_counts_with_its_stack(checks, tmp_path):
    waits, options = checks.Waits(), {"statistics": [Statistic("own", warned, merge="sum")], "every_n_steps": 1}
    with waits.noted(torch.device("cpu")):
        fit(tmp_path, Toy(mlp()), batches(4), ActivationLogger("net.0", **options))
    (stack,) = waits.of_hookboard
    assert "in warned" in stack
    assert waits.of_others == 0


def test_a_wait_elsewhere_is_not_counted_for_hookboard(checks):
    waits = checks.Waits()
    with waits.noted(torch.device("cpu")):
        warned(torch.ones(2))
    assert (waits.of_hookboard, waits.of_others) == ([], 1)


def test_a_wait_in_the_thread_of_a_callback_is_none_of_training(checks):
    waits = checks.Waits()
    thread = threading.Thread(target=waits.note, name="hookboard ActivationLogger")
    thread.start()
    thread.join()
    assert waits.of_threads == {"hookboard ActivationLogger": 1}
    assert waits.of_hookboard == []


def test_values_that_are_wrong_are_found(checks, monkeypatch):
    truth = checks.true_values
    monkeypatch.setattr(checks, "true_values", lambda *args: {site: 1.01 * x for site, x in truth(*args).items()})
    assert checks.deviation(checks.aside, torch.device("cpu"), {"accelerator": "cpu"}) > 5e-3
