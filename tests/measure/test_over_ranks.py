"""Rows of several ranks become one, with the same bits on each."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from hookboard.measure.by_torch import rows_of
from hookboard.measure.row import EMPTY, merge_over


class Pair:
    """Two ranks that are threads: each exchange waits for the other."""

    def __init__(self, shared, barrier, rank):
        self.shared, self.barrier, self.rank = shared, barrier, rank

    def _exchange(self, mine):
        self.shared[self.rank] = mine.clone()
        self.barrier.wait(10)
        both = torch.stack([self.shared[0], self.shared[1]])
        self.barrier.wait(10)
        return both

    def sum(self, mine):
        return self._exchange(mine).sum(0)

    def max(self, mine):
        return self._exchange(mine).max(0).values


def merged(*rows):
    shared, barrier = {}, threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        done = [pool.submit(merge_over, Pair(shared, barrier, rank), row.clone()) for rank, row in enumerate(rows)]
    return [one.result() for one in done]


def switched_off():
    row = torch.tensor([EMPTY], dtype=torch.float64)
    row[:, 0] = torch.nan
    return row


@pytest.mark.parametrize("other", [rows_of(torch.randn(5), None), torch.tensor([EMPTY], dtype=torch.float64)])
def test_a_site_that_one_rank_has_switched_off_is_off_on_all(other):
    one, two = merged(switched_off(), other)
    assert one[0, 0].isnan()
    assert two[0, 0].isnan()
