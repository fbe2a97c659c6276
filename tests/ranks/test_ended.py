"""The end of a training is judged by what all ranks have lost."""

from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.spawns


def test_losses_after_the_last_look_are_averaged_over_the_ranks(run_script, tmp_path):
    done = run_script(Path(__file__).with_name("ended.py"), tmp_path, ranks=2)
    assert done.returncode == 0, done.stderr
    (first, judged), (second, _) = (torch.load(tmp_path / str(rank)) for rank in range(2))
    means = [(one + other) / 2 for one, other in zip(first, second, strict=True)]
    assert [step for step, _ in judged] == [*range(len(means))]
    assert [value for _, value in judged] == pytest.approx(means)
