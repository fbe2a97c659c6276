"""Two real processes must log what one process logs on the data of both."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from ranks.strategies import HAS_FSDP, needs_fsdp
from toys import events, scalars

pytestmark = pytest.mark.spawns

STEPS = 3


@pytest.fixture(scope="module")
def start(run_script):
    """What makes runs of train.py on some devices, with a process for each if `ranks` is not given."""

    def start(folder, devices, *runs, ranks=None):
        done = run_script(Path(__file__).with_name("train.py"), devices, folder, *runs, ranks=ranks or devices)
        assert done.returncode == 0, done.stderr

    return start


def read_by(folder, run, ranks=2):
    """The readings of each rank, by site."""
    saved = [torch.load(folder / f"{run}.{rank}", weights_only=False) for rank in range(ranks)]
    return [
        SimpleNamespace(steps=[by_site(step) for step in steps], validation=by_site(validation))
        for steps, validation in saved
    ]


def by_site(readings):
    return {reading.site: reading for reading in readings}


DDP, SPAWN = "ddp_find_unused_parameters_true", "ddp_spawn_find_unused_parameters_true"


@pytest.fixture(scope="module")
def alone(start, tmp_path_factory):
    """The folder with all runs of one process."""
    folder = tmp_path_factory.mktemp("alone")
    start(folder, 1, "auto:sync", "auto:sharded", "auto:pictures")
    return folder


@pytest.fixture(scope="module")
def together(start, tmp_path_factory):
    """The folder with all runs of two processes that one script starts."""
    folder = tmp_path_factory.mktemp("together")
    runs = [f"{DDP}:{how}" for how in ("sync", "alone", "faults", "replaced", "unequal")]
    runs += ["ddp:pictures", "ddp:headed", "ddp:collective", "tensor:sharded"]
    start(folder, 2, *runs, *(["fsdp:sharded", "fsdp:pictures"] if HAS_FSDP else []))
    return folder


@pytest.fixture(scope="module")
def spawned(start, tmp_path_factory):
    """The folder with the run of two processes that Lightning spawns."""
    folder = tmp_path_factory.mktemp("spawned")
    start(folder, 2, f"{SPAWN}:sync", ranks=1)
    return folder


@pytest.fixture(scope="module")
def one(alone):
    return read_by(alone, "auto:sync", ranks=1)[0]


@pytest.fixture(scope="module", params=[("together", DDP), ("spawned", SPAWN)], ids=[DDP, SPAWN])
def run_of_two(request):
    fixture, strategy = request.param
    return request.getfixturevalue(fixture) / f"{strategy}:sync"


@pytest.fixture(scope="module")
def two(run_of_two):
    return read_by(run_of_two.parent, run_of_two.name)


def assert_same(mine, theirs, rel=1e-6):
    rounding = 1e-7 * abs(theirs.statistics.get("abs_max", 0.0))
    assert mine.statistics == pytest.approx(theirs.statistics, rel=rel, abs=rounding, nan_ok=True)
    assert mine.moments.count == theirs.moments.count


def test_every_statistic_is_that_of_one_process_on_the_data_of_both(one, two):
    assert len(one.steps) == len(two[0].steps) == STEPS
    for mine, theirs in zip(two[0].steps, one.steps, strict=True):
        of_data = [site for site in theirs if site.role != "parameter_grad"]
        assert {site.role for site in of_data} >= {"output", "input", "grad_output", "grad_input", "parameter"}
        assert set(mine) - set(of_data) == {site for site in mine if site.role == "parameter_grad"}
        for site in of_data:
            assert_same(mine[site], theirs[site])


def test_a_branch_that_one_rank_takes_alone_is_logged(two):
    ran = [{site.path for site in step if site.name == "net.branch"} for step in two[0].steps]
    assert ran[0] == set()
    assert "net.branch/0" in ran[1]


def test_the_gradient_of_a_parameter_is_the_mean_over_the_ranks_and_counts_once(one, two):
    for mine, theirs in zip(two[0].steps, one.steps, strict=True):
        sites = [site for site in theirs if site.role == "parameter_grad" and "branch" not in site.name]
        assert len(sites) == 4
        for site in sites:
            assert mine[site].statistics["l2"] == pytest.approx(theirs[site].statistics["l2"] / 2, rel=1e-5)
            assert mine[site].moments.count == theirs[site].moments.count


def test_a_validation_loop_is_read_as_one_process_reads_it(one, two):
    for rank in two:
        assert rank.validation.keys() == one.validation.keys() != set()
        for site, reading in one.validation.items():
            assert_same(rank.validation[site], reading)


def test_only_rank_zero_writes(run_of_two):
    log = run_of_two.with_name(f"{run_of_two.name}.events")
    assert len(list(log.glob("events.*"))) == 1
    assert set(scalars(log)["activation_mean/net.first"]) == {0, 1, 2}


def test_without_sync_dist_rank_zero_logs_its_own(together):
    (zero, other) = read_by(together, f"{DDP}:alone")
    assert [len(step) > 0 for step in zero.steps] == [True] * STEPS
    assert [len(step) for step in other.steps] == [0] * STEPS
    counts = [
        reading.moments.count
        for step in zero.steps
        for site, reading in step.items()
        if (site.path, site.role) == ("net.first", "output")
    ]
    assert counts == [8 * 3, 8 * 4, 8 * 2]


def test_a_fault_on_one_rank_hangs_nobody_and_leaves_no_part_of_a_number(together):
    steps = read_by(together, f"{DDP}:faults")[0].steps
    parameters = [any(site.role == "parameter" for site in step) for step in steps]
    assert parameters[0]
    for step in steps[1:]:
        names = {site.name for site in step if site.role == "output"}
        assert "net.first" in names
        assert "net.last" not in names


@pytest.fixture(scope="module")
def whole(alone):
    """Of a model that learns."""
    return read_by(alone, "auto:sharded", ranks=1)[0].steps


@needs_fsdp
def test_sharded_parameters_are_measured_as_a_whole(together, whole):
    sharded = read_by(together, "fsdp:sharded")[0].steps
    assert len(sharded) == STEPS
    for mine, theirs in zip(sharded, whole, strict=True):
        assert mine.keys() == theirs.keys()
        for site, reading in theirs.items():
            if site.role == "parameter_grad":
                assert mine[site].statistics["l2"] == pytest.approx(reading.statistics["l2"] / 2, rel=1e-5)
                assert mine[site].moments.count == reading.moments.count
            else:
                assert_same(mine[site], reading, rel=1e-5)
        moved = [reading for site, reading in mine.items() if site.role == "parameter_update"]
        assert all(reading.statistics["update_norm"] > 0 for reading in moved)


def test_what_tensor_parallelism_splits_is_measured_as_a_whole_and_equal_plain_tensors_count_on_each(together, whole):
    steps = read_by(together, "tensor:sharded")[0].steps
    assert len(steps) == STEPS
    for mine, theirs in zip(steps, whole, strict=True):
        assert mine.keys() == theirs.keys()
        for site, reading in theirs.items():
            if site.name == "net.squash":
                assert mine[site].statistics["mean"] == pytest.approx(reading.statistics["mean"], rel=1e-4)
                assert mine[site].moments.count == 2 * reading.moments.count
            elif site.name != "net.ways":
                assert_same(mine[site], reading, rel=1e-4)


def pictures(folder):
    """Tag to the bytes of the picture of every step."""
    found = events(folder)
    return {tag: [event.encoded_image_string for event in found.Images(tag)] for tag in found.Tags()["images"]}


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=needs_fsdp)])
def test_pictures_of_two_processes_on_the_same_batches_are_those_of_one(alone, together, strategy):
    of_one = pictures(alone / "auto:pictures.events")
    assert sorted(of_one) == ["cam/net.1/grad_cam", "feature_maps/net.0", "kernels/net.0"]
    assert pictures(together / f"{strategy}:pictures.events") == of_one


def test_a_module_that_one_rank_replaces_hangs_nobody_and_is_measured_on(together):
    both = read_by(together, f"{DDP}:replaced")
    for rank in both:
        assert len(rank.steps) == STEPS
        for step in rank.steps:
            counts = {site.role: reading.moments.count for site, reading in step.items() if site.path == "net.last"}
            assert counts["output"] == counts["grad_output"] > 0


def test_maps_are_of_the_forward_of_the_lightning_module_also_where_lightning_redirects_it(together):
    assert "cam/net.1/grad_cam" in pictures(together / "ddp:headed.events")
    assert torch.load(together / "ddp:headed.0")[0] == []


def test_a_classifier_that_talks_to_the_other_ranks_has_no_maps_and_one_warning_says_why(together):
    of_each = [torch.load(together / f"ddp:collective.{rank}") for rank in range(2)]
    (said,), nothing = [said for said, _ in of_each]
    assert "this model's forward pass communicates with the other ranks" in said
    assert nothing == []
    for mine, theirs in zip(of_each[0][1].values(), of_each[1][1].values(), strict=True):
        assert mine.equal(theirs)


def test_all_ranks_follow_rank_zero_where_it_alone_has_a_logger_or_another_interval(together):
    both = read_by(together, f"{DDP}:unequal")
    for of_all in zip(both[0].steps, both[1].steps, strict=True):
        assert of_all[0].keys() == of_all[1].keys() != set()
    assert set(scalars(together / f"{DDP}:unequal.events")["activation_mean/net.first"]) == {0, 1, 2}
