import math

import pytest
import torch
from oracle import assert_true, normal
from ways import on_cpu, statistics

from hookboard.measure import FIELDS, merge_rows, native


@pytest.fixture(params=["kernel", "torch"], autouse=True)
def way(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr(native, "can_merge", lambda rows, owner: False)


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


def test_micro_batches_of_one_constant_have_no_deviation():
    rows = rows_of([torch.full((n,), 0.1) for n in (3, 5, 7)])
    assert merged_to_one(rows)[FIELDS.index("deviation")] == 0


def test_a_row_that_failed_spoils_its_owner_alone():
    rows = rows_of([normal(10), normal(20)])
    rows[0] = math.nan
    merged = merge_rows(rows, torch.tensor([0, 1]), 2, [])
    assert merged[0].isnan().all()
    assert_true(statistics(merged[1]), [normal(20)])


compiled = pytest.mark.skipif(native._native is None, reason="needs the compiled kernel")
NOTHING = torch.tensor(on_cpu(torch.empty(0)), dtype=torch.float64)


def as_bytes(row):
    return torch.tensor(row, dtype=torch.float64).numpy().tobytes()


@compiled
def test_a_list_of_rows_merges_to_what_the_rows_merge_to():
    parts = [normal(10), normal(20, mean=3.0), torch.tensor([math.nan, -math.inf, 2.0]), torch.empty(0)]
    rows, owner = rows_of(parts), [2, 0, 2, 0]
    given = [(2, on_cpu(parts[0])), (0, as_bytes(on_cpu(parts[1])), None)]
    given += [(at, row) for at, row in zip(owner[2:], rows[2:].tolist(), strict=True)]
    merged = native.merged_list(given, 3, NOTHING.numpy().tobytes())
    assert_true(statistics(merged[0]), [parts[1], parts[3]])
    assert_true(statistics(merged[2]), [parts[0], parts[2]])
    assert merged[1].equal(NOTHING)


@compiled
def test_rows_of_which_no_owner_has_two_stay_as_they_are_however_long():
    rows = normal(2, 13, dtype=torch.float64)
    merged = native.merged_list([(2, rows[0].tolist()), (0, as_bytes(rows[1].tolist()))], 3, as_bytes([7.0] * 13))
    assert merged.tolist() == [rows[1].tolist(), [7.0] * 13, rows[0].tolist()]


@compiled
@pytest.mark.parametrize(
    "given",
    [
        pytest.param([(0, NOTHING)], id="a tensor"),
        pytest.param([(0, [1.0] * 9)], id="a row of another length"),
        pytest.param([(0, as_bytes([1.0] * 11))], id="bytes of another length"),
        pytest.param([(3, [1.0] * 10)], id="an unknown owner"),
    ],
)
def test_a_list_that_is_merged_otherwise_is_left_alone(given):
    assert native.merged_list(given, 3, NOTHING.numpy().tobytes()) is None


@compiled
def test_columns_behind_the_moments_are_merged_otherwise():
    row = [1.0] * 11
    assert native.merged_list([(0, row), (0, row)], 1, as_bytes(row)) is None
