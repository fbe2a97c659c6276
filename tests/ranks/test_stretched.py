"""Ranks stretch the cadence together, as far as the slowest needs."""

from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).with_name("stretched.py")


@pytest.mark.spawns
def test_two_processes_measure_the_same_steps_where_one_is_slow(run_script, tmp_path):
    done = run_script(SCRIPT, tmp_path, ranks=2)
    assert done.returncode == 0, done.stderr
    one, other = (torch.load(tmp_path / f"steps.{rank}") for rank in range(2))
    assert one == other
    assert one[:2] == [1, 3]
    assert len(one) < 8
