"""The Triton kernels without a GPU: their numbers under Triton's interpreter, and what they compile to."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="there is no Triton here")

HERE = Path(__file__).parent


@pytest.mark.spawns
def test_under_the_interpreter_every_number_is_true():
    """It must be chosen before Triton is imported: the cases of `interpreted.py` run in a process of their own."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / "interpreted.py")]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run(command, env=environment, cwd=HERE.parents[1], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
