"""Without the compiled kernel one line says so, and what that costs."""

import logging

import pytest
import torch

from hookboard.measure import native
from hookboard.measure.statistics import plan
from hookboard.measure.table import Table


@pytest.fixture
def said(monkeypatch, caplog):
    """What is said while rows are merged on the CPU twice, with or without the kernel."""
    native.report_missing_kernel.cache_clear()

    def lines(kernel):
        monkeypatch.setattr(native, "_native", kernel)
        with caplog.at_level(logging.INFO, "lightning.pytorch"):
            for _ in range(2):
                Table(plan("mean"), torch.device("cpu")).send()()
        return [record.getMessage() for record in caplog.records]

    yield lines
    native.report_missing_kernel.cache_clear()


def test_without_the_kernel_one_line_says_what_it_costs_and_how_to_get_it(said):
    (line,) = said(None)
    assert line.startswith("hookboard: the compiled kernel is missing")
    assert "4 to 17 times as long" in line
    assert "install a C compiler" in line


def test_with_the_kernel_nothing_is_said(said):
    pytest.importorskip("hookboard.measure._native", reason="installed without a C compiler")
    assert said(native._native) == []
