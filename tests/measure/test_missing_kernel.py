"""Without the compiled kernel one line says so, and what that costs."""

import logging

import pytest
import torch

from hookboard.measure import native
from hookboard.measure.statistics import plan
from hookboard.measure.table import Table


@pytest.mark.parametrize("has_kernel", [True, False])
def test_without_the_kernel_alone_one_line_says_what_it_costs_and_how_to_get_it(has_kernel, monkeypatch, caplog):
    if has_kernel:
        pytest.importorskip("hookboard.measure._native", reason="installed without a C compiler")
    else:
        monkeypatch.setattr(native, "_native", None)
    native.report_missing_kernel.cache_clear()
    with caplog.at_level(logging.INFO, "lightning.pytorch"):
        for _ in range(2):
            Table(plan("mean"), torch.device("cpu")).send()()
    native.report_missing_kernel.cache_clear()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == (0 if has_kernel else 1)
    for line in lines:
        assert line.startswith("hookboard: the compiled kernel is missing")
        assert "4 to 17 times as long" in line
        assert "install a C compiler" in line
