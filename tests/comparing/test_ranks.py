"""Models and recorded steps of two ranks."""

from pathlib import Path

import pytest
import torch
from comparing.ranks import net
from torch import nn

from hookboard import compare, record

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


@pytest.fixture(scope="module")
def runs(run, tmp_path_factory):
    """Folders of two equal runs of two ranks, and of one with a wrong norm."""
    folder = tmp_path_factory.mktemp("runs")
    for case, name in (("fit", "a"), ("fit", "b"), ("other", "c")):
        run(case, folder / name)
    return folder


@pytest.mark.parametrize("case", ["ddp", pytest.param("fsdp", marks=needs_fsdp)])
def test_a_model_is_equal_to_its_copy_on_two_ranks(run, case):
    same, wrong, part, averaged = run(case).stdout.strip().splitlines()
    assert same.startswith("[] ")
    assert wrong.startswith("['1 (output)'] ")
    assert part.startswith("[] ")
    # Each rank has a batch of its own, and gradients are averaged.
    assert "(gradient weight)" in averaged
    assert "(output)" not in averaged


def test_each_rank_records_its_own_steps(runs):
    names = sorted(str(path.relative_to(runs / "a")) for path in (runs / "a").glob("*/*"))
    assert names == [f"rank_{rank}/step_0000000{step}.zip" for rank in (0, 1) for step in (0, 1)]


def test_two_runs_of_two_ranks_are_equal(runs):
    found = compare(runs / "a", runs / "b")
    assert found.differences == ()
    assert "equal at step 0, 1" in found.notes


def test_the_step_rank_and_module_in_which_runs_of_two_ranks_part_are_told(runs):
    found = compare(runs / "a", runs / "c")
    assert found.notes[0] == "at step 0, rank 0"
    assert str(found.first.spot) == "net.1 (output)"


def test_runs_with_another_number_of_ranks_are_not_compared(runs, tmp_path):
    record(nn.Sequential(net()), torch.ones(6, 4), tmp_path / "step_00000000.zip")
    with pytest.raises(ValueError, match="only runs with as many ranks can be compared"):
        compare(runs / "a", tmp_path)


@needs_fsdp
def test_of_split_weights_nothing_is_recorded_and_one_line_says_why(run, tmp_path):
    done = run("sharded", tmp_path)
    assert not list(tmp_path.glob("**/*.zip"))
    assert "the weights are split over ranks" in done.stdout + done.stderr
