"""A monitor of one's own in the benchmark: the example of its README, as it stands there."""

import re
from pathlib import Path

import pytest

pytest.importorskip("sklearn")

from benchmarks.health.cases import Case, all_cases
from benchmarks.health.monitors import factory_of, watched
from benchmarks.health.table import JUDGES

README = Path("benchmarks/health/README.md").read_text()


@pytest.fixture
def loss_rose(tmp_path, monkeypatch):
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (tmp_path / "loss_rose.py").write_text(example)
    monkeypatch.syspath_prepend(tmp_path)
    return re.search(r"--monitor (\S+:\w+)", README)[1]


@pytest.mark.trains
def test_the_example_finds_a_rate_that_is_too_large_and_says_nothing_of_a_healthy_training(loss_rose):
    (alarm,) = watched(loss_rose, Case("plant", "rate_large", "mlp", 0))
    assert (alarm.says, alarm.means) == ("the loss rose", {"update_too_large"})
    assert 0 < alarm.since < 200
    assert watched(loss_rose, Case("base", "mlp", "mlp", 0)) == []


@pytest.mark.trains
def test_the_monitor_that_reads_code_names_the_loss_that_gets_probabilities():
    (alarm, *_) = watched("benchmarks.health.reads_code:ReadsCode", Case("plant", "softmax_twice", "mlp", 0))
    assert (alarm.says, alarm.since) == ("loss_input", 0)


@pytest.mark.parametrize("place", ["loss_rose", "nowhere_at_all:Monitor", "benchmarks.health.alarms:Monitor"])
def test_a_monitor_that_is_not_there_is_said_before_anything_is_trained(place):
    with pytest.raises(ValueError, match=r"give package\.module:factory"):
        factory_of(place)


def test_the_case_and_the_tools_that_the_readme_names_are_there():
    (only,) = re.findall(r"--only (\S+)`", README)
    assert any(only in str(case) for case in all_cases())
    assert [name for name in JUDGES if name not in README and name != "hookboard"] == []
