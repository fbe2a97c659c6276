"""Kernels go through the real launcher of Triton, over a driver that does nothing."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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
    assert all(said["worked"]), said
    assert not said["given up"]
    assert said["launched"] == 3
    # The second is not looked up; one that begins elsewhere is another variant. For AMD all are: Triton also compiles
    # for the size of a tensor's memory.
    assert said["looked up"] == (2 if target[0] == "cuda" else 3)
    first, second = said["same numbers"]
    assert first == second != []
