"""What concerns several ranks is found in Hugging Face's Trainer too, and healthy trainings of it are left alone."""

import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parent))
from hugging_face import CASES, SPOILED_AFTER

pytestmark = pytest.mark.spawns


@pytest.fixture(scope="module")
def trained(run_script, tmp_path_factory):
    """By case, of rank 0: the verdicts that concern several ranks, and the error of DDP."""
    folder = tmp_path_factory.mktemp("hugging_face")
    done = run_script(Path(__file__).with_name("hugging_face.py"), folder, *CASES, ranks=2)
    assert done.returncode == 0, done.stderr
    saved = {case: torch.load(folder / f"{case}.0", weights_only=False) for case in CASES}
    return {case: ([v for v in said if v.rule == "ranks_differ"], error) for case, (said, _, error) in saved.items()}


@pytest.mark.parametrize("case", ["healthy", "ddp looks for it"])
def test_nothing_is_said_of_a_healthy_training(trained, case):
    assert trained[case] == ([], "")


def test_a_weight_that_changes_on_one_rank_is_an_alarm(trained):
    (verdict,), _ = trained["a weight changes on one rank"]
    assert (verdict.severity, verdict.rule, verdict.module) == ("alarm", "ranks_differ", "classifier")
    assert verdict.since == SPOILED_AFTER
