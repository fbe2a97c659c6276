import pytest
import torch
from oracle import assert_true, normal

from hookboard import Statistic
from hookboard.measure import FORMULAS, WIDTH, Moments, measure, plan
from hookboard.measure.rows import MOST_ROWS, RowBuffer

CPU = torch.device("cpu")
CALLS = 3 * MOST_ROWS


@pytest.fixture(scope="module")
def filled():
    """A buffer that two sites have filled many times over, one of them with nothing now and then."""
    peak = Statistic("peak", lambda x: x.max(), merge="max")
    everything = plan([*FORMULAS, peak])
    buffer, parts = RowBuffer(everything.more, CPU), list(normal(CALLS, 5, mean=3.0))
    for index, part in enumerate(parts):
        buffer.append(7, measure(part, everything))
        if index % 3 == 0:
            buffer.append(2, measure(part[:0], everything, moments_only=True))
    memory = len(buffer.kept)
    return buffer.rows(buffer.take(), 8), parts, memory


def test_rows_that_were_merged_on_the_way_are_as_true_as_rows_that_were_kept(filled):
    merged, parts, _ = filled
    moments = Moments(*merged[7:, :-1].numpy().T)
    assert_true({name: formula.value(moments).item() for name, formula in FORMULAS.items()}, parts)


def test_a_statistic_of_ones_own_is_merged_on_the_way_too(filled):
    merged, parts, _ = filled
    assert merged[7, -1] == torch.stack(parts).max()


def test_rows_of_nothing_stay_nothing(filled):
    merged, _, _ = filled
    assert merged[2, 0] == 0


def test_memory_is_bounded_however_many_calls_there_are(filled):
    _, _, memory = filled
    assert memory < MOST_ROWS


def test_of_wide_rows_fewer_are_kept():
    wide = plan([Statistic(f"own_{k}", lambda x: x.sum(), merge="sum") for k in range(2000)])
    buffer, row = RowBuffer(wide.more, CPU), measure(torch.ones(1), wide)
    for _ in range(100):
        buffer.append(0, row)
    assert len(buffer.kept) * wide.width < MOST_ROWS * WIDTH
