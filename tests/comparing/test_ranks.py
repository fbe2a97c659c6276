"""Models of two ranks."""

from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.spawns

SCRIPT = Path(__file__).with_name("ranks.py")
needs_fsdp = pytest.mark.skipif(
    not hasattr(torch.cpu.Stream, "record_event"), reason="the FSDP2 of this torch does not run on CPUs"
)


@pytest.fixture(scope="module")
def run(run_script, tmp_path_factory):
    """What runs a case of ranks.py on two ranks, in a folder."""

    def run(case, folder=None):
        done = run_script(SCRIPT, folder or tmp_path_factory.mktemp(case), case, ranks=2)
        assert done.returncode == 0, done.stderr
        return done

    return run


@pytest.mark.parametrize("case", ["ddp", pytest.param("fsdp", marks=needs_fsdp)])
def test_a_model_is_equal_to_its_copy_on_two_ranks(run, case):
    same, wrong, part, averaged = run(case).stdout.strip().splitlines()
    assert same.startswith("[] ")
    assert wrong.startswith("['1 (output)'] ")
    assert part.startswith("[] ")
    # Each rank has a batch of its own, and gradients are averaged.
    assert "(gradient weight)" in averaged
    assert "(output)" not in averaged
