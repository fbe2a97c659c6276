"""What any number of processes merge is what one measures on the data of all, at the same cost for each of them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from oracle import rows_of_channels
from ranks.merged import (
    LATE,
    LONELY,
    RESIZED,
    SITES,
    STEPS,
    UNLIKE,
    WEIGHT,
    WIDE,
    WIDE_UNLIKE,
    flushed,
    given,
    odd,
    table,
)

pytestmark = pytest.mark.spawns


@pytest.fixture(scope="module", params=[2, 8])
def ran(request, run_script, tmp_path_factory):
    """How many ranks there were; of each what it has read, the bytes it has handed over, how it lost another."""
    size = request.param
    folder = tmp_path_factory.mktemp("merged")
    done = run_script(Path(__file__).with_name("merged.py"), folder, ranks=size)
    assert done.returncode == 0, done.stderr
    return size, [torch.load(folder / str(rank), weights_only=False) for rank in range(size)]


def everyones(size, step, site):
    tensors = [(given(rank, step) | odd(rank, step)).get(site) for rank in range(1 if site == WEIGHT else size)]
    return [tensor for tensor in tensors if tensor is not None]


def sites_of(step):
    return [*SITES, WEIGHT, *([LONELY] if step else [])]


def test_rows_are_those_of_all_values(ran):
    size, kept = ran
    for step in range(STEPS):
        for site in sites_of(step):
            values = torch.cat([tensor.flatten() for tensor in everyones(size, step, site)]).double()
            found = kept[0][0][step][site].moments
            assert found.count == values.numel()
            assert (found.min, found.max) == (values.min(), values.max())
            assert found.mean == pytest.approx(values.mean().item(), rel=1e-12, abs=1e-12 * values.abs().max().item())
            assert found.deviation == pytest.approx(values.std(correction=0).item(), rel=1e-12)


def test_rows_of_channels_are_those_of_all_values(ran):
    size, kept = ran
    for step in range(STEPS):
        for site in sites_of(step):
            true = rows_of_channels(everyones(size, step, site), 0 if site == WEIGHT else 1)
            np.testing.assert_allclose(kept[0][0][step][site].channels, true, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("step", "site"), [(0, RESIZED), (2, RESIZED), (2, UNLIKE)], ids=str)
def test_channels_that_are_alike_now_are_merged_whatever_they_were_before(ran, step, site):
    size, kept = ran
    true = rows_of_channels(everyones(size, step, site), 1)
    np.testing.assert_allclose(kept[0][0][step][site].channels, true, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("step", "site"), [(1, UNLIKE), (2, LATE), (0, WIDE_UNLIKE)], ids=str)
def test_ranks_with_unlike_channels_have_the_row_of_all_values_and_no_channels(ran, step, site):
    size, kept = ran
    reading = kept[0][0][step][site]
    assert reading.channels is None
    assert reading.moments.count == sum(tensor.numel() for tensor in everyones(size, step, site))


def test_ranks_sample_the_same_channels_of_a_wide_layer(ran):
    size, kept = ran
    found = kept[0][0][0][WIDE]
    assert found.width == 14_336
    true = rows_of_channels(everyones(size, 0, WIDE), 1)[::14]
    np.testing.assert_allclose(found.channels, true, rtol=1e-9, atol=1e-9)


def test_the_type_of_a_parameter_is_known_to_all_ranks(ran):
    assert {read[0][WEIGHT].dtype for read, _, _ in ran[1]} == {torch.float32}


def test_what_one_process_measures_of_the_same_data_is_the_same(ran):
    size, kept = ran
    for step in range(STEPS):
        alone = table(None)
        for rank in range(1, size):
            for site, tensor in given(rank, step).items():
                if site != WEIGHT:
                    alone.open(site)(tensor)
        for site, reading in flushed(alone, given(0, step)).items():
            found = kept[0][0][step][site]
            assert found.statistics == pytest.approx(reading.statistics, rel=1e-11, abs=1e-11, nan_ok=True), site
            assert (found.histogram is None) == (reading.histogram is None)
            if reading.histogram is not None:
                np.testing.assert_array_equal(found.histogram.counts, reading.histogram.counts)


def test_every_rank_has_the_same_to_the_bit(ran):
    _, kept = ran
    for step in range(STEPS):
        for read, _, _ in kept[1:]:
            for site, reading in kept[0][0][step].items():
                assert repr(read[step][site].statistics) == repr(reading.statistics)
                np.testing.assert_array_equal(read[step][site].channels, reading.channels)


def test_the_bytes_that_a_rank_hands_over_are_about_its_rows_whatever_their_number(ran):
    _, kept = ran
    for read, handed, _ in kept:
        readings = [read[STEPS - 1][site] for site in sites_of(STEPS - 1) if site != WEIGHT]
        bins = 8 * sum(reading.histogram is not None for reading in readings) * (1 << 13)
        own = sum(reading.channels.nbytes for reading in readings) + bins
        # An all-reduce sends and receives each number twice.
        assert 0.5 * own < handed[-1] < 1.5 * own


def test_every_rank_learns_that_one_has_left(ran):
    _, kept = ran
    assert [lost for _, _, lost in kept[:-1]] == ["another rank has stopped measuring or has exited"] * (len(kept) - 1)
