"""Rows of channels: merged over calls, as if all values had been in one tensor."""

import math

import numpy as np
import pytest
import torch
from oracle import assert_true, normal, rows_of_channels

from hookboard.measure import FORMULAS, MAX_CHANNEL_ROW_BYTES, WIDTH, Recorder, plan
from hookboard.measure.rows import GROWTH
from hookboard.model.sites import Site

A, B = Site("a", "output"), Site("b", "output")
GRADIENT = Site("a", "grad_output")


def recorder(*statistics, **options):
    options = {"channels": lambda site, tensor: 1 if tensor.dim() > 1 else None, **options}
    return Recorder(plan(statistics or tuple(FORMULAS)), torch.device("cpu"), **options)


def read(mine, *tensors, site=A):
    for tensor in tensors:
        mine.open(site)(tensor)
    (reading,) = mine.flush().values()
    return reading


def assert_channels(reading, tensors):
    assert reading.channels.dtype == np.float64
    np.testing.assert_allclose(reading.channels, rows_of_channels(tensors, 1), rtol=1e-9, atol=1e-14)


def test_calls_of_a_site_merge_for_each_channel():
    parts = [normal(3, 4, 5), normal(2, 4, mean=9.0), normal(7, 4, 2, 2).relu()]
    reading = read(recorder(), *parts)
    assert_channels(reading, parts)
    assert_true(reading.statistics, parts)


def test_more_calls_than_are_kept_merge_on_the_way(monkeypatch):
    monkeypatch.setattr("hookboard.measure.rows.MOST_ROWS", 1)
    mine, parts = recorder(), list(normal(20 * GROWTH + 3, 3, 4, mean=5.0))
    for part in parts:
        mine.open(A)(part)
        assert len(mine._main.rows.kept) < GROWTH
    (reading,) = mine.flush().values()
    assert_channels(reading, parts)


def test_a_site_whose_channels_changed_has_none_after_a_merge_on_the_way_either(monkeypatch):
    monkeypatch.setattr("hookboard.measure.rows.MOST_ROWS", 1)
    for odd in (normal(3), normal(3, 5)):
        reading = read(recorder(), *[normal(3, 4)] * 3, odd, *[normal(3, 4)] * 3 * GROWTH)
        assert reading.channels is None


@pytest.mark.parametrize("other", [normal(3, 5), normal(12)], ids=["more channels", "no channels"])
def test_calls_with_unlike_channels_leave_the_row_alone_until_the_next_step(other):
    mine = recorder()
    for parts in ([normal(3, 4), other], [other, normal(3, 4)], [normal(3, 4), other, normal(3, 4)]):
        reading = read(mine, *parts)
        assert reading.channels is None
        assert_true(reading.statistics, parts)
    assert_channels(read(mine, normal(6, 4)), [normal(6, 4)])


def test_an_empty_call_changes_nothing():
    assert_channels(read(recorder(), normal(3, 4), torch.empty(0, 7)), [normal(3, 4)])
    assert read(recorder(), torch.empty(0, 7)).channels is None


def test_columns_that_were_not_asked_for_are_not_a_number():
    channels = read(recorder("max"), normal(3, 4)).channels
    assert np.isnan(channels[:, 1:5]).all()
    assert (channels[:, 0] == 3).all()


def test_sites_keep_their_own_channels():
    mine = recorder()
    mine.open(B)(normal(3, 5))
    mine.open(Site("plain", "output"))(normal(3))
    mine.open(A)(normal(3, 4))
    readings = {reading.site: reading for reading in mine.flush().values()}
    assert_channels(readings[A], [normal(3, 4)])
    assert_channels(readings[B], [normal(3, 5)])


def test_a_fault_in_choosing_the_dimension_switches_the_site_off():
    def choose(site, tensor):
        raise RuntimeError("planted")

    mine = recorder(channels=choose)
    with pytest.warns(match="planted"):
        mine.open(A)(normal(3, 4))
    assert mine.flush() == {}


def test_the_scale_of_gradients_is_divided_out_of_channels():
    mine = recorder()
    mine.scale = torch.tensor(1024.0)
    reading = read(mine, (normal(3, 4) * 1024).half(), site=GRADIENT)
    np.testing.assert_allclose(reading.channels, rows_of_channels([(normal(3, 4) * 1024).half() / 1024], 1), rtol=1e-6)
    assert reading.dtype is torch.float16


def test_channels_recorded_under_inference_mode_are_read_outside_of_it():
    mine = recorder()
    with torch.inference_mode():
        mine.open(A)(normal(3, 4))
        mine.open(A)(normal(3, 4, dtype=torch.float64))
    assert_channels(read(mine), [normal(3, 4), normal(3, 4, dtype=torch.float64)])


def test_the_dtype_is_that_of_the_first_tensor_of_the_step():
    mine = recorder()
    assert read(mine, normal(3).half(), normal(3)).dtype is torch.float16
    assert read(mine, normal(3).double()).dtype is torch.float64


def test_a_histogram_is_chosen_for_each_site_by_its_first_tensor():
    asked = []

    def choose(site, tensor):
        asked.append(site)
        return tensor.dtype is torch.float16

    mine = recorder(histogram=choose)
    for _ in range(2):
        mine.open(A)(normal(10).half())
        mine.open(B)(normal(10))
        readings = {reading.site: reading for reading in mine.flush().values()}
        assert readings[A].histogram.counts.sum() == 10
        assert readings[B].histogram is None
        assert math.isfinite(readings[B].moments.mean)
    assert asked == [A, B]


def test_calls_of_a_wide_site_merge_for_every_kth_channel_and_its_width_is_known():
    parts = [normal(3, 14_336), normal(2, 14_336, mean=9.0), normal(2, 14_336, 1, 2)]
    reading = read(recorder(), *parts)
    np.testing.assert_allclose(reading.channels, rows_of_channels(parts, 1)[::4], rtol=1e-9, atol=1e-14)
    assert reading.width == 14_336
    assert_true(reading.statistics, parts)


def test_calls_of_other_widths_have_no_rows_in_common_though_they_have_as_many():
    mine = recorder()
    assert read(mine, normal(3, 5000), normal(3, 4999)).channels is None
    reading = read(mine, normal(3, 4999))
    assert (reading.width, len(reading.channels)) == (4999, 2500)


def test_a_narrow_tensor_with_as_many_rows_as_a_wide_one_is_not_merged_with_it():
    assert read(recorder(), normal(3, 8192), normal(3, 4096)).channels is None


def test_the_rows_of_a_million_channels_are_bounded_while_calls_wait():
    mine, tensor = recorder(), normal(1, 1_000_003)
    for _ in range(3):
        mine.open(A)(tensor)
    assert max(rows.nbytes for _, _, rows in mine._main.rows.kept) <= MAX_CHANNEL_ROW_BYTES
    assert mine._slots[A].extent.rows * 8 * WIDTH <= MAX_CHANNEL_ROW_BYTES
