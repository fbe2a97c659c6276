"""The trainings of judged.py on two ranks, which several files look at."""

from pathlib import Path

import pytest
import torch
from ranks.judged import CASES, SPLIT
from ranks.strategies import HAS_FSDP

JOBS = [f"ddp:{case}" for case in (*CASES, "resumed")] + [f"tensor:{case}" for case in SPLIT]
JOBS += [f"fsdp:{case}" for case in (*SPLIT, "resumed")] if HAS_FSDP else []


@pytest.fixture(scope="session")
def judge(run_script, tmp_path_factory):
    """What runs jobs of judged.py on some devices: what each rank has kept, by job."""

    def judge(devices, jobs):
        folder = tmp_path_factory.mktemp("judged")
        done = run_script(Path(__file__).with_name("judged.py"), folder, devices, *jobs, ranks=devices)
        assert done.returncode == 0, done.stderr
        ranks = range(devices)
        return {job: [torch.load(folder / f"{job}.{rank}", weights_only=False) for rank in ranks] for job in jobs}

    return judge


@pytest.fixture(scope="session")
def together(judge):
    return judge(2, JOBS)
