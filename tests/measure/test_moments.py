import math

import pytest
import torch
from oracle import assert_true, normal, truth

from hookboard.measure import moments
from hookboard.measure.moments import BLOCK, FIELDS, REQUESTABLE, Moments, Scratch, measure, merge
from hookboard.measure.statistics import FORMULAS, plan


def statistics(row, names=tuple(FORMULAS)):
    return plan(names).values(Moments(*torch.as_tensor(row, dtype=torch.float64).tolist()), [])


def on_cpu(values, wanted=REQUESTABLE):
    return measure(values, 0, wanted, Scratch())


def without_a_compiler(values, wanted=REQUESTABLE):
    """The way of an installation that has no compiled kernel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moments, "_native", None)
        return on_cpu(values, wanted)


def on_device(values, wanted=REQUESTABLE):
    """The way of an accelerator, which is the same code on any device."""
    return moments.measure_without_waiting(values, wanted)


every_way = pytest.mark.parametrize("measured", [on_cpu, without_a_compiler, on_device])

MANY_VALUES = {
    "standard normal": normal(5000),
    "one value": torch.tensor([3.5]),
    "all equal": torch.full((999,), 0.1),
    "mean 1e4, sigma 0.1": normal(100_000, mean=1e4, std=0.1),
    "mean -1e4, sigma 0.1": normal(100_000, mean=-1e4, std=0.1),
    "an outlier first": torch.cat([torch.tensor([1e6]), normal(5000)]),
    "half zero": normal(5000).relu(),
    "negative and zero": -normal(5000).relu(),
    "positive": normal(5000).exp(),
    "squares beyond float32": normal(1000, std=1e30),
    "squares below float32": normal(1000, std=1e-30),
    "minus zero": torch.tensor([-0.0, 0.0, 1.0, -1.0]),
    "float64": normal(5000, dtype=torch.float64),
    "NaN and infinities": torch.cat([normal(1000), torch.tensor([math.nan, math.inf, math.inf, -math.inf])]),
    "NaN alone": torch.full((7,), math.nan),
    "int64": torch.arange(-50, 1000),
    "uint8": torch.arange(256, dtype=torch.uint8),
    "bool": torch.tensor([True, False, True]),
    "bfloat16": normal(5000, dtype=torch.bfloat16),
    "float16": normal(5000, dtype=torch.float16),
    "float16, sum beyond its range": torch.full((4096,), 100.0, dtype=torch.float16),
    "float8": normal(500).to(torch.float8_e4m3fn),
}


@every_way
@pytest.mark.parametrize("values", MANY_VALUES.values(), ids=MANY_VALUES)
def test_every_statistic_equals_float64_truth(measured, values):
    assert_true(statistics(measured(values)), [values])


@every_way
def test_an_empty_tensor_counts_nothing(measured):
    row = torch.as_tensor(measured(torch.empty(0))).tolist()
    assert row == [0] * 8 + [math.inf, -math.inf]


@every_way
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_blocks_of_a_long_tensor_merge_to_the_truth(measured, dtype):
    values = torch.cat([normal(BLOCK), normal(BLOCK, mean=50.0), torch.tensor([math.nan, 0.0, 1.0])]).to(dtype)
    assert_true(statistics(measured(values)), [values])


@every_way
def test_gaps_between_values_are_not_measured(measured):
    values = normal(1000)
    assert_true(statistics(measured(values[::2])), [values[::2]])


@pytest.mark.slow
@every_way
def test_twenty_million_elements_are_exact(measured):
    values = torch.randn(20_000_000, generator=torch.Generator().manual_seed(0)).relu_()
    assert_true(statistics(measured(values)), [values])


@pytest.mark.parametrize("length", [1, 15, 16, 17, 4095, 4096, 4097, 8200])
def test_the_kernel_is_right_at_the_borders_of_its_lanes_and_chunks(length):
    values = normal(length).relu()
    assert_true(statistics(on_cpu(values)), [values])


def test_counts_stay_exact_beyond_what_float32_can_count():
    million = torch.zeros(2**20)
    row = torch.tensor(on_cpu(million), dtype=torch.float64)
    merged = merge(row.expand(17, -1).clone(), torch.zeros(17, dtype=torch.long), 1)[0]
    assert merged[FIELDS.index("zeros")] == 17 * 2**20 > 2**24


def test_implicit_zeros_count_as_zeros():
    values = normal(100) + 5
    row = measure(values, 900, REQUESTABLE, Scratch())
    assert_true(statistics(row), [values, torch.zeros(900)])


def test_rows_of_unequal_parts_merge_to_the_truth_of_the_whole():
    parts = [normal(10), normal(1000, mean=1e4, std=0.1), torch.tensor([math.inf, 2.0]), torch.empty(0), normal(3)]
    rows = torch.tensor([on_cpu(part) for part in parts], dtype=torch.float64)
    merged = merge(rows, torch.zeros(len(parts), dtype=torch.long), 1)
    assert_true(statistics(merged[0]), parts)


def test_rows_merge_with_those_of_their_own_owner_alone():
    parts = [normal(10), normal(20, mean=3.0), normal(30)]
    rows = torch.tensor([on_cpu(part) for part in parts], dtype=torch.float64)
    merged = merge(rows, torch.tensor([2, 0, 2]), 3)
    assert_true(statistics(merged[0]), [parts[1]])
    assert_true(statistics(merged[2]), [parts[0], parts[2]])
    assert merged[1, FIELDS.index("count")] == 0


def test_a_thousand_micro_batches_at_a_large_mean_keep_their_variance():
    whole = normal(1_000_000, mean=1e4, std=0.1)
    rows = torch.tensor([on_cpu(part) for part in whole.split(1000)], dtype=torch.float64)
    merged = merge(rows, torch.zeros(len(rows), dtype=torch.long), 1)
    assert_true(statistics(merged[0]), [whole])


@every_way
def test_the_sum_of_magnitudes_is_only_taken_where_it_is_wanted(measured):
    row = torch.as_tensor(measured(normal(100), frozenset({"mean"})))
    assert row[FIELDS.index("abs_sum")] == 0


def test_no_value_is_read_back_by_the_host_on_the_way_of_a_device():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Forbid(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            assert function is not torch.ops.aten._local_scalar_dense.default, "the host waits for the device"
            assert function is not torch.ops.aten.nonzero.default, "the host waits for a shape"
            return function(*args, **(kwargs or {}))

    with Forbid():
        row = on_device(torch.cat([normal(100), torch.tensor([math.nan])]))
    assert row[FIELDS.index("nan")] == 1


def test_scratch_made_under_inference_mode_serves_outside_of_it():
    scratch = Scratch()
    with torch.inference_mode():
        measure(normal(100), 0, REQUESTABLE, scratch)
    assert_true(statistics(measure(normal(100), 0, REQUESTABLE, scratch)), [normal(100)])


def test_a_larger_tensor_after_a_smaller_one_gets_its_own_scratch():
    scratch = Scratch()
    for size in (10, 1000, 10):
        assert_true(statistics(measure(normal(size), 0, REQUESTABLE, scratch)), [normal(size)])


def test_the_oracle_itself_is_not_fooled_by_a_wrong_value():
    with pytest.raises(AssertionError, match="std"):
        assert_true({"std": truth([normal(10)])["std"] * (1 + 1e-5)}, [normal(10)])
