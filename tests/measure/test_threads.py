"""Modules may be called from several threads at once."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from oracle import assert_true, normal
from ways import no_counts, on_cpu, statistics, without_a_compiler

KINDS = [torch.float32, torch.float16, torch.complex64]


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("measured", [on_cpu, without_a_compiler])
def test_what_several_threads_measure_at_once_is_what_each_measures_alone(measured, dtype):
    def of(k):
        return (normal(20_000 + k, std=3.0) + k).to(dtype)

    def work(k):
        return [on_cpu(of(k), counts=counts[k]) for _ in range(20)]

    counts = [no_counts() for _ in range(8)]
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(4) as threads:
        if measured is without_a_compiler:
            patch.setattr("hookboard.measure.native._native", None)
        rows = list(threads.map(work, range(8)))
    assert [each.sum() for each in counts] == [20 * (20_000 + k) for k in range(8)]
    for k, measured_rows in enumerate(rows):
        values = of(k).to(torch.complex128).abs() if dtype.is_complex else of(k)
        for row in measured_rows[::5]:
            assert_true(statistics(row), [values])
