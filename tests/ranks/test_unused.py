"""Parameters that a step under DDP does not use are named before DDP raises an error; other programs are left alone."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from unused import MEANT, SKIPPING

pytestmark = pytest.mark.spawns


@pytest.fixture(scope="module")
def trained(run_script, tmp_path_factory):
    """By case and rank: the verdicts of the rule, its warnings, and the error of DDP."""
    folder = tmp_path_factory.mktemp("unused")

    for cases in (*([case] for case in SKIPPING), MEANT):  # after its error DDP exchanges nothing more
        done = run_script(Path(__file__).with_name("unused.py"), folder, *cases, ranks=2)
        assert done.returncode == 0, done.stderr

    def said_in(case):
        ranks = [torch.load(folder / f"{case}.{rank}", weights_only=False) for rank in range(2)]
        return [
            ([v for v in verdicts if v.rule == "unused_parameters"], [w for w in warned if "unused" in w], error)
            for verdicts, warned, error in ranks
        ]

    return {case: said_in(case) for case in (*SKIPPING, *MEANT)}


@pytest.mark.parametrize("case", MEANT)
def test_nothing_is_said_where_ddp_waits_for_nothing(trained, case):
    assert trained[case] == [([], [], "")] * 2


def test_rank_0_has_an_alarm_with_names(trained):
    (verdict,), _, error = trained["all ranks skip it"][0]
    assert "Expected to have finished reduction" in error
    assert (verdict.severity, verdict.since) == ("alarm", 0)
    assert (
        "gradients of 2 parameters that no loss of this step depends on: side.0.weight, side.0.bias; "
        "the next forward pass raises an error"
    ) in verdict.evidence


@pytest.mark.parametrize("case", SKIPPING)
def test_another_rank_that_skips_a_layer_gives_a_warning(trained, case):
    _, (warning,), error = trained[case][1]
    assert "side.0.weight, side.0.bias" in warning
    assert error
