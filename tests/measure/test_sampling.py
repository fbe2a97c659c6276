"""Of a wide tensor every k-th channel gets the row of its values alone; the row of the whole is that of all values."""

import numpy as np
import pytest
import torch
from oracle import derived, normal, row_of, rows_of_channels
from ways import ALL, by_kernel, no_counts

from hookboard.measure import (
    MAX_CHANNEL_ROW_BYTES,
    MAX_CHANNEL_ROWS,
    WIDTH,
    channel_row_count,
    channel_stride,
    form_of,
    measure,
    measure_channels,
    native,
    plan,
)

SIZES = [1, 4095, 4096, 4097, 8192, 8193, 14_336, 16_384, 1_000_003, 10**9]


@pytest.fixture(params=["compiled", "by torch"])
def way(request, monkeypatch):
    if request.param == "by torch":
        monkeypatch.setattr(native, "_native", None)


def half_dead(*shape, dim=1, **options):
    """Some channels are 0, in a pattern that no sample has."""
    dead = torch.arange(shape[dim]) % 3 == 0
    return normal(*shape, **options) * ~dead.view([-1 if d == dim else 1 for d in range(len(shape))])


LAST = torch.channels_last
WIDE = {
    "(N, C)": (half_dead(6, 14_336), 1),
    "(N, T, C)": (half_dead(2, 3, 16_384, dim=2), 2),
    "(N, C, H, W)": (half_dead(2, 5000, 2, 3), 1),
    "channels last": (half_dead(2, 5000, 2, 3).to(memory_format=LAST), 1),
    "a weight": (half_dead(5000, 3, dim=0), 0),
    "bfloat16": (half_dead(4, 9000, dtype=torch.bfloat16), 1),
    "float64 whose squares leave its range": (half_dead(4, 9000, dtype=torch.float64) * 1e200, 1),
}


@pytest.mark.parametrize("channels", SIZES)
def test_the_rows_of_any_width_keep_to_the_bytes_and_no_smaller_k_would(channels):
    k = channel_stride(channels)
    assert channel_row_count(channels) == len(range(0, channels, k))
    assert channel_row_count(channels) * WIDTH * 8 <= MAX_CHANNEL_ROW_BYTES
    assert k == 1 or len(range(0, channels, k - 1)) > MAX_CHANNEL_ROWS


@pytest.mark.parametrize(("tensor", "dim"), WIDE.values(), ids=WIDE)
def test_every_kth_channel_has_the_row_of_its_values(way, tensor, dim):
    k = channel_stride(tensor.shape[dim])
    _, rows = measure_channels(tensor, dim, ALL)
    assert k > 1
    np.testing.assert_allclose(np.asarray(rows), rows_of_channels([tensor], dim)[::k], rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(("tensor", "dim"), WIDE.values(), ids=WIDE)
def test_the_row_of_the_whole_is_that_of_all_channels(way, tensor, dim):
    counts, alone = no_counts(), no_counts()
    row, _ = measure_channels(tensor, dim, ALL, counts=counts)
    assert row == measure(tensor, ALL, counts=alone)
    assert torch.equal(counts, alone)
    assert row[: len(row_of(np.zeros(1)))] == pytest.approx(row_of(tensor.double().numpy().ravel()), rel=1e-6, abs=1e-6)


def test_a_tensor_of_a_million_channels_has_rows_within_the_bytes():
    tensor = half_dead(2, 1_000_003)
    _, rows = measure_channels(tensor, 1, ALL)
    assert rows.nbytes <= MAX_CHANNEL_ROW_BYTES
    assert rows.base is None or rows.nbytes == getattr(rows.base, "nbytes", len(rows.base))


def test_as_many_channels_as_have_a_row_each_are_measured_as_before():
    tensor = normal(5, MAX_CHANNEL_ROWS)
    row, rows = measure_channels(tensor, 1, ALL)
    assert rows.shape == (MAX_CHANNEL_ROWS, WIDTH)
    assert form_of(tensor, 1).channels == MAX_CHANNEL_ROWS
    if native._native is not None:
        true_row, true_rows = by_kernel(tensor, 1)
        assert row == true_row
        assert np.array_equal(rows, true_rows)


def test_the_kernel_is_not_asked_for_more_rows_than_there_may_be():
    assert form_of(normal(5, MAX_CHANNEL_ROWS + 1), 1) is None


@pytest.mark.parametrize("scale", [2.0, 1024.0])
def test_gradients_of_wide_tensors_are_divided_by_the_scale(way, scale):
    tensor = half_dead(3, 5000)
    _, rows = measure_channels(tensor * scale, 1, ALL, scale=torch.tensor(scale))
    np.testing.assert_allclose(np.asarray(rows), rows_of_channels([tensor], 1)[::2], rtol=1e-6, atol=1e-12)


def test_the_dead_fraction_of_a_wide_tensor_is_that_of_what_was_looked_at():
    tensor, asked = half_dead(6, 14_336), plan(["dead_fraction"])
    _, rows = measure_channels(tensor, 1, asked)
    assert asked.more == ()
    assert np.mean(rows[:, 4] == rows[:, 0]) == derived([tensor[:, ::4]])["dead_fraction"]
