"""Rows of channels that two processes merge are those of all their values."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from oracle import rows_of_channels

sys.path.insert(0, str(Path(__file__).parent))
from channels import COUNTED, LATE, LAYER, LONELY, RESIZED, UNLIKE, WEIGHT, WIDE, WIDE_UNLIKE, steps_of

pytestmark = pytest.mark.spawns


@pytest.fixture(scope="module")
def read(run_script, tmp_path_factory):
    """What each of two ranks has read, by step and site."""
    folder = tmp_path_factory.mktemp("channels")
    done = run_script(Path(__file__).with_name("channels.py"), folder, ranks=2)
    assert done.returncode == 0, done.stderr
    return [torch.load(folder / str(rank), weights_only=False) for rank in range(2)]


def given(step, site):
    return [tensor for rank in range(2) for tensor in steps_of(rank)[step].get(site, [])]


@pytest.mark.parametrize(
    ("step", "site"), [(0, LAYER), (1, LAYER), (2, LAYER), (0, COUNTED), (1, COUNTED)], ids=lambda value: str(value)
)
def test_channels_of_both_ranks_merge_to_the_truth(read, step, site):
    for rank in range(2):
        np.testing.assert_allclose(read[rank][step][site].channels, rows_of_channels(given(step, site), 1), rtol=1e-9)


def test_a_parameter_counts_once(read):
    for rank in range(2):
        np.testing.assert_allclose(read[rank][0][WEIGHT].channels, rows_of_channels(steps_of(0)[0][WEIGHT], 0))


def test_a_site_that_one_rank_lacks_has_the_channels_of_the_other(read):
    for rank in range(2):
        np.testing.assert_allclose(read[rank][1][LONELY].channels, rows_of_channels(given(1, LONELY), 1))


def test_calls_of_one_rank_with_unlike_channels_leave_no_channels_and_the_row(read):
    for rank in range(2):
        assert read[rank][2][LONELY].channels is None
        assert read[rank][2][LONELY].moments.count == 14


@pytest.mark.parametrize("step", [1, 2])
def test_ranks_with_unlike_channels_leave_none_and_break_nothing(read, step):
    for rank in range(2):
        reading = read[rank][step][UNLIKE]
        assert reading.moments.count == sum(tensor.numel() for tensor in given(step, UNLIKE))
        if step == 1:
            assert reading.channels is None
        else:
            np.testing.assert_allclose(reading.channels, rows_of_channels(given(2, UNLIKE), 1))


@pytest.mark.parametrize("step", [0, 2])
def test_a_layer_that_is_replaced_by_a_wider_one_has_its_channels(read, step):
    for rank in range(2):
        np.testing.assert_allclose(read[rank][step][RESIZED].channels, rows_of_channels(given(step, RESIZED), 1))


def test_channels_that_one_rank_does_not_have_are_no_channels(read):
    for rank in range(2):
        assert read[rank][2][LATE].channels is None
        assert read[rank][2][LATE].moments.count == 21


def test_two_ranks_sample_the_same_channels_of_a_wide_layer(read):
    for rank in range(2):
        found = read[rank][0][WIDE]
        assert found.width == 14_336
        np.testing.assert_allclose(found.channels, rows_of_channels(given(0, WIDE), 1)[::4], rtol=1e-9)


def test_ranks_whose_wide_layers_differ_have_no_rows_in_common_though_they_have_as_many(read):
    for rank in range(2):
        assert read[rank][0][WIDE_UNLIKE].channels is None
        assert read[rank][0][WIDE_UNLIKE].moments.count == 3 * (5000 + 4999)


def test_a_histogram_that_one_rank_did_not_count_is_none(read):
    for rank in range(2):
        assert read[rank][0][COUNTED].histogram.counts.sum() == 12
        assert read[rank][0][LAYER].histogram is None


def test_the_type_of_a_parameter_is_known_to_all_ranks(read):
    for rank in range(2):
        assert read[rank][0][WEIGHT].dtype is torch.float32


def test_the_row_is_that_of_all_values(read):
    values = torch.cat([tensor.flatten() for tensor in given(0, LAYER)]).double()
    assert math.isclose(read[0][0][LAYER].moments.mean, values.mean().item(), rel_tol=1e-12)
