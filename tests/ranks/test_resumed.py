"""A fit of two processes that is continued finds what one without a break does."""

from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).with_name("resumed.py")

HAS_FSDP = hasattr(torch.cpu.Stream, "record_event")
NEEDS_FSDP = pytest.mark.skipif(not HAS_FSDP, reason="the FSDP2 of this torch does not run on CPUs")


@pytest.mark.spawns
@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=NEEDS_FSDP)])
def test_two_processes_go_on(strategy, run_script, tmp_path):
    done = run_script(SCRIPT, tmp_path, strategy, ranks=2)
    assert done.returncode == 0, done.stderr
    whole, resumed = torch.load(tmp_path / "said.0")
    assert ("dead_units", "net.2", 0) in [verdict[1:4] for verdict in whole]
    assert [(verdict[0], *verdict[1:3]) for verdict in resumed if verdict[1] == "dead_units"] == [
        (verdict[0], *verdict[1:3]) for verdict in whole if verdict[1] == "dead_units"
    ]
