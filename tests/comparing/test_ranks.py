"""Models of two ranks."""

from pathlib import Path

import pytest
from ranks.strategies import HAS_FSDP, needs_fsdp

pytestmark = pytest.mark.spawns


@pytest.fixture(scope="module")
def printed(run_script):
    done = run_script(Path(__file__).with_name("ranks.py"), "ddp", *(["fsdp"] if HAS_FSDP else []), ranks=2)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("case", ["ddp", pytest.param("fsdp", marks=needs_fsdp)])
def test_a_model_is_equal_to_its_copy_on_two_ranks(printed, case):
    same, wrong, part, averaged = (line.removeprefix(case) for line in printed if line.startswith(case))
    assert same == part == " []"
    assert wrong == " ['1 (output)']"
    # Each rank has a batch of its own, and gradients are averaged.
    assert "(gradient weight)" in averaged
    assert "(output)" not in averaged
