"""The benchmark of merging over ranks, tried out at its smallest."""

import runpy
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.spawns, pytest.mark.usefixtures("python_is_warm")]

FOLDER = str(Path(__file__).parents[2] / "benchmarks")

HAS_FAKE_WORK = hasattr(torch._C._distributed_c10d, "FakeWork")


@pytest.mark.skipif(not HAS_FAKE_WORK, reason="no collective of this torch's fake processes is ever completed")
def test_every_table_has_a_row(monkeypatch, capsys):
    monkeypatch.syspath_prepend(FOLDER)
    # Not imported: the tests have a folder of that name.
    runpy.run_path(f"{FOLDER}/ranks.py")["main"](["--quick"])
    sys.modules.pop("ranks_tasks", None)
    tables = [part.splitlines() for part in capsys.readouterr().out.split("\n\n")[1:]]
    assert [table[2].split(" | ")[0] for table in tables] == ["| 2", "| 8", "| tiny"]
    assert [len({line.count("|") for line in table}) for table in tables] == [1, 1, 1]
