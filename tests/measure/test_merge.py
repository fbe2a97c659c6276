import math

import pytest
import torch
from oracle import assert_true, normal
from ways import on_cpu, statistics

from hookboard.measure import FIELDS, merge_rows, native


@pytest.fixture(params=["kernel", "torch"], autouse=True)
def way(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr(native, "merge", lambda rows, owner, owners: None)


def rows_of(parts):
    return torch.tensor([on_cpu(part) for part in parts], dtype=torch.float64)


def merged_to_one(rows):
    return merge_rows(rows, torch.zeros(len(rows), dtype=torch.long), 1, [])[0]


def test_counts_stay_exact_beyond_what_float32_can_count():
    million = rows_of([torch.zeros(2**20)])
    assert merged_to_one(million.expand(17, -1).clone())[FIELDS.index("zeros")] == 17 * 2**20 > 2**24


def test_rows_of_unequal_parts_merge_to_the_truth_of_the_whole():
    parts = [normal(10), normal(1000, mean=1e4, std=0.1), torch.tensor([math.inf, 2.0]), torch.empty(0), normal(3)]
    assert_true(statistics(merged_to_one(rows_of(parts))), parts)


def test_rows_merge_with_those_of_their_own_owner_alone():
    parts = [normal(10), normal(20, mean=3.0), normal(30, dtype=torch.float64) * 1e200]
    merged = merge_rows(rows_of([*parts, parts[0]]), torch.tensor([0, 0, 2, 3]), 4, [])
    assert_true(statistics(merged[0]), parts[:2])
    assert_true(statistics(merged[2]), parts[2:])
    assert_true(statistics(merged[3]), parts[:1])
    assert merged[1].tolist() == [0] * 8 + [math.inf, -math.inf]


def test_a_thousand_micro_batches_at_a_large_mean_keep_their_variance():
    whole = normal(1_000_000, mean=1e4, std=0.1)
    assert_true(statistics(merged_to_one(rows_of(whole.split(1000)))), [whole])


def test_a_row_that_failed_spoils_its_owner_alone():
    rows = rows_of([normal(10), normal(20)])
    rows[0] = math.nan
    merged = merge_rows(rows, torch.tensor([0, 1]), 2, [])
    assert merged[0].isnan().all()
    assert_true(statistics(merged[1]), [normal(20)])
