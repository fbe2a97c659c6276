"""A fit of two processes that is continued finds what one without a break does."""

import pytest
from ranks.strategies import needs_fsdp


@pytest.mark.spawns
@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=needs_fsdp)])
def test_two_processes_go_on(strategy, together):
    whole, resumed = together[f"{strategy}:dead"][0].verdicts, together[f"{strategy}:resumed"][0]
    assert ("dead_units", "net.2", 0) in [(one.rule, one.module, one.since) for one in whole]
    mine, theirs = (
        [(one.severity, one.rule, one.module) for one in verdicts if one.rule == "dead_units"]
        for verdicts in (resumed, whole)
    )
    assert mine == theirs
