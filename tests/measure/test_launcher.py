"""Kernels go through the real launcher of Triton, over a driver that does nothing; and what is known of cards."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hookboard.measure import card

sys.path.append(str(Path(__file__).parent))
from test_triton import needs_today

HERE = Path(__file__).parent


@pytest.mark.spawns
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="there is no Triton here")
@needs_today
@pytest.mark.parametrize("target", [("cuda", "90", "32"), ("hip", "gfx942", "64")], ids=["NVIDIA", "AMD"])
def test_a_variant_is_looked_up_once_and_then_launched_as_it_is(target, tmp_path):
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", HERE / "launched.py", *target]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    said = json.loads(run.stdout)
    assert said["failed"] == 5 * [[]], said
    assert not said["given up"]
    assert said["launched"] == 5
    # The second of each is not looked up; one that begins elsewhere is another variant. For AMD all are: Triton also
    # compiles for the size of a tensor's memory.
    assert said["looked up"] == (3 if target[0] == "cuda" else 5)
    for first, second in (said["same numbers"], said["same of many"]):
        assert first == second != []


@pytest.mark.parametrize(("capability", "is_fast"), [((9, 0), True), ((8, 9), False), ((12, 0), False)])
def test_float64_is_fast_on_cards_for_computing(monkeypatch, capability, is_fast):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert card.adds_float64_fast(torch.device("cuda", 0)) is is_fast
