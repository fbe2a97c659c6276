"""Weights that should be alike on all ranks and are not are an alarm; what is meant to differ is none."""

import re
from pathlib import Path

import pytest
import torch
from ranks.drifted import APART, CASES, HAS_TRANSFORMERS, IN_TRANSFORMERS, MEANT, SPOILED_AFTER

pytestmark = pytest.mark.spawns
needs_transformers = pytest.mark.skipif(not HAS_TRANSFORMERS, reason="transformers or accelerate is not installed")


@pytest.fixture(scope="module")
def trained(run_script, tmp_path_factory):
    """By case, what `ranks_differ` says of it, and the RMS of each weight on each rank after the last step."""
    folder = tmp_path_factory.mktemp("drifted")
    done = run_script(Path(__file__).with_name("drifted.py"), folder, *CASES, ranks=3)
    assert done.returncode == 0, done.stderr
    saved = {case: torch.load(folder / case, weights_only=False) for case in CASES}
    return {case: ([v for v in said if v.rule == "ranks_differ"], rms) for case, (said, rms) in saved.items()}


@pytest.mark.parametrize("case", [*MEANT, pytest.param(IN_TRANSFORMERS[0], marks=needs_transformers)])
def test_nothing_is_said_where_weights_are_alike_or_meant_to_differ(trained, case):
    assert trained[case][0] == []


def test_a_weight_that_changes_on_one_rank_is_an_alarm_with_its_rms(trained):
    (verdict,), rms = trained["a weight changes on one rank"]
    assert (verdict.severity, verdict.module, verdict.since) == ("alarm", "net.head", SPOILED_AFTER + 1)
    found = re.search(
        ", but its gradients are the same on all ranks; the weight's RMS is (.*) on ranks 0 and 2, (.*) on rank 1$",
        verdict.evidence,
    )
    wanted = [each["head.weight"] for each in rms[:2]]
    assert list(map(float, found.groups())) == pytest.approx(wanted, rel=0.006)


@needs_transformers
def test_a_weight_that_changes_on_one_rank_is_an_alarm_in_transformers_too(trained):
    (verdict,), _ = trained[IN_TRANSFORMERS[1]]
    assert (verdict.severity, verdict.module, verdict.since) == ("alarm", "net.head", SPOILED_AFTER)


@pytest.mark.parametrize(("case", "reason"), [(APART[1], ", and so do its gradients"), (APART[2], "")])
def test_ranks_that_train_apart_or_begin_apart_are_an_alarm_at_the_first_look(trained, case, reason):
    (verdict,), rms = trained[case]
    assert (verdict.severity, verdict.module, verdict.since) == ("alarm", "body.0", 0)
    others = sum(len({each[name] for each in rms}) > 1 for name in rms[0]) - 1
    assert verdict.evidence.endswith(f"; {others} other weights differ too")
    assert f"body.0.weight differs between ranks{reason}" in verdict.evidence
    assert ("average the gradients" in verdict.advice) == bool(reason)
