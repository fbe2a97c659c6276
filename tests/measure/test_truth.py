"""Every value that a tensor can hold is measured truly, on every way."""

import math

import pytest
import torch
from oracle import assert_true, normal, truth
from ways import as_row, every_way, on_cpu, on_device, statistics

from hookboard.measure import FIELDS, merge_rows, plan
from hookboard.measure.by_torch import BLOCK_ON_HOST as BLOCK

FLOAT32_MAX = torch.finfo(torch.float32).max
FLOAT64_MAX = torch.finfo(torch.float64).max

MANY_VALUES = {
    "standard normal": normal(5000),
    "one value": torch.tensor([3.5]),
    "all equal": torch.full((999,), 0.1),
    "mean 1e4, sigma 0.1": normal(100_000, mean=1e4, std=0.1),
    "an outlier first": torch.cat([torch.tensor([1e6]), normal(5000)]),
    "half zero": normal(5000).relu(),
    "NaN and infinities": torch.cat([normal(1000), torch.tensor([math.nan, math.inf, math.inf, -math.inf])]),
    "NaN alone": torch.full((7,), math.nan),
    "squares beyond float32": normal(1000, std=1e30),
    "squares below float32": normal(1000, std=1e-30),
    "subnormal": normal(1000, std=1e-41),
    "the ends of float32": torch.tensor([-FLOAT32_MAX, FLOAT32_MAX, FLOAT32_MAX, 0.0, math.inf]),
    "3e38": normal(1000).sign() * 3e38,
    "bfloat16": normal(5000, dtype=torch.bfloat16),
    "bfloat16 at 3e38": (normal(1000).sign() * 3e38).bfloat16(),
    "float16": normal(5000, dtype=torch.float16),
    "float16, sum beyond its range": torch.full((4096,), 100.0, dtype=torch.float16),
    "float8": normal(500).to(torch.float8_e4m3fn),
    "float64": normal(5000, dtype=torch.float64),
    "float64 at 1e200": normal(1000, dtype=torch.float64) * 1e200,
    "float64 at 1e200, far from zero": (normal(1000, dtype=torch.float64) + 1e4) * 1e200,
    "float64 at 1e-200": normal(1000, dtype=torch.float64) * 1e-200,
    "float64 at 1e200 with infinities": torch.tensor([1e200, -2e200, math.inf, math.nan], dtype=torch.float64),
    "float64 subnormal": normal(1000, dtype=torch.float64) * 1e-315,
    "the ends of float64": torch.tensor([-FLOAT64_MAX, FLOAT64_MAX, FLOAT64_MAX, 0.0], dtype=torch.float64),
    "int64": torch.arange(-50, 1000),
    "large int64": torch.tensor([2**62, -(2**61), 3]),
    "uint8": torch.arange(256, dtype=torch.uint8),
    "uint64": torch.tensor([0, 2**63, 3], dtype=torch.uint64),
    "bool": torch.tensor([True, False, True]),
    "0-d": torch.tensor(2.5),
    "gaps": normal(1000)[::2],
    "expanded": normal(7).view(7, 1).expand(7, 100),
    "channels last": normal(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "channels last 3d": normal(2, 3, 4, 5, 6).to(memory_format=torch.channels_last_3d),
    "permuted": normal(2, 3, 4).permute(2, 0, 1),
}


@every_way
@pytest.mark.parametrize("values", MANY_VALUES.values(), ids=MANY_VALUES)
def test_every_statistic_equals_the_truth(measured, values):
    assert_true(statistics(measured(values)), [values])


@every_way
@pytest.mark.parametrize("values", MANY_VALUES.values(), ids=MANY_VALUES)
def test_rows_of_parts_merge_to_the_truth_of_the_whole(measured, values):
    parts = [*values.flatten().double()[:3].split(1), values.flatten().double()[3:]]
    rows = torch.stack([as_row(measured(part)) for part in parts])
    merged = merge_rows(rows, torch.zeros(len(parts), dtype=torch.long), 1, [])
    assert_true(statistics(merged[0]), [values])


@every_way
def test_an_empty_tensor_counts_nothing(measured):
    assert as_row(measured(torch.empty(0))).tolist() == [0] * 8 + [math.inf, -math.inf]
    assert as_row(measured(torch.empty(3, 0, dtype=torch.int64))).tolist() == [0] * 8 + [math.inf, -math.inf]


@every_way
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_blocks_of_a_long_tensor_merge_to_the_truth(measured, dtype):
    values = torch.cat([normal(BLOCK), normal(BLOCK, mean=50.0), torch.tensor([math.nan, 0.0, 1.0])]).to(dtype)
    assert_true(statistics(measured(values)), [values])


@every_way
def test_blocks_of_very_large_values_merge_to_the_truth(measured):
    values = normal(BLOCK + 1000, mean=3.0, dtype=torch.float64) * 1e200
    assert_true(statistics(measured(values)), [values])


@pytest.mark.large
@every_way
def test_twenty_million_elements_are_exact(measured):
    values = torch.randn(20_000_000, generator=torch.Generator().manual_seed(0)).relu_()
    assert_true(statistics(measured(values)), [values])


@every_way
def test_the_sum_of_magnitudes_is_only_taken_where_it_is_wanted(measured):
    assert as_row(measured(normal(100), plan("mean")))[FIELDS.index("abs_mean")] == 0


def test_no_value_is_read_back_by_the_host_on_the_way_of_a_device():
    from torch.utils._python_dispatch import TorchDispatchMode

    waits = {
        torch.ops.aten._local_scalar_dense.default,
        torch.ops.aten.nonzero.default,
        torch.ops.aten.bincount.default,
        torch.ops.aten.masked_select.default,
        torch.ops.aten.index.Tensor,
    }

    class Forbid(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            assert function not in waits, f"the host waits for the device in {function}"
            return function(*args, **(kwargs or {}))

    values = torch.cat([normal(100), torch.tensor([math.nan])])
    counts = torch.zeros(8192, dtype=torch.long)
    with Forbid():
        row = on_device(values, counts=counts)
        on_device(values.double() * 1e200, counts=counts)
        on_device(torch.complex(values, values), counts=counts)
    assert row[FIELDS.index("nan")] == 1
    assert counts.sum() == 303


def test_memory_to_work_in_made_under_inference_mode_serves_outside_of_it():
    with torch.inference_mode():
        on_cpu(normal(100, dtype=torch.float16), counts=torch.zeros(8192, dtype=torch.long))
    values = normal(100, dtype=torch.float16)
    assert_true(statistics(on_cpu(values)), [values])


def test_a_default_device_of_the_user_does_not_reach_what_is_measured_on_the_cpu():
    values = [normal(BLOCK + 10, dtype=torch.float16), normal(10).to_sparse()]
    with torch.device("meta"):
        rows = [on_cpu(each, counts=torch.zeros(8192, dtype=torch.long, device="cpu")) for each in values]
    for row, each in zip(rows, values, strict=True):
        assert_true(statistics(row), [each.to_dense()])


def test_the_oracle_itself_is_not_fooled_by_a_wrong_value():
    with pytest.raises(AssertionError, match="std"):
        assert_true({"std": truth([normal(10)])["std"] * (1 + 1e-5)}, [normal(10)])
