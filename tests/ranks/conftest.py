from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="session")
def saved_by(run_script, tmp_path_factory):
    """What runs a script of this folder on some ranks, with the arguments before its jobs: what each saved, by job."""

    def saved(script, jobs, *arguments, ranks=2):
        folder = tmp_path_factory.mktemp(script)
        done = run_script(Path(__file__).with_name(f"{script}.py"), folder, *arguments, *jobs, ranks=ranks)
        assert done.returncode == 0, done.stderr
        of_each = range(ranks)
        return {job: [torch.load(folder / f"{job}.{rank}", weights_only=False) for rank in of_each] for job in jobs}

    return saved
