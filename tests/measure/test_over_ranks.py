"""What is sent to other ranks, and what comes of it."""

import math

import pytest
import torch

from hookboard.health.look import needs_histogram
from hookboard.measure.statistics import plan
from hookboard.measure.table import Table
from hookboard.model.sites import Site

CPU, SITE = torch.device("cpu"), Site("layer", "output")


class Twins:
    """Two ranks that have the same numbers; it counts the bytes that each hands over."""

    def __init__(self):
        self.bytes = 0

    def sum(self, numbers):
        self.bytes += numbers.nbytes
        return 2 * numbers

    def max(self, numbers):
        self.bytes += numbers.nbytes
        return numbers

    def union(self, mine):
        return [*mine]


def merged(values, *statistics):
    """The reading of two ranks with these values, and the bytes of a step after the first."""
    twins = Twins()
    table = Table(plan(statistics), CPU, ranks=twins, channels=lambda site, tensor: 1)
    for _ in range(2):
        twins.bytes = 0
        table.open(SITE)(values)
        reading = table.send()()[SITE]
    return reading, twins.bytes


@pytest.mark.parametrize("statistics", [["mean"], ["mean", "abs_mean"]])
@pytest.mark.parametrize("last", [1.0, math.nan, math.inf, -math.inf])
def test_two_ranks_with_the_same_values_have_each_twice(statistics, last):
    values = torch.tensor([[1.0, -2.0], [0.0, last]])
    reading, _ = merged(values, *statistics)
    table = Table(plan(statistics), CPU, channels=lambda site, tensor: 1)
    for _ in range(2):
        table.open(SITE)(values)
    alone = table.send()()[SITE]
    assert reading.moments == pytest.approx(alone.moments, nan_ok=True)
    assert reading.channels == pytest.approx(alone.channels, nan_ok=True)


def test_only_columns_with_content_are_sent():
    values, told = torch.ones(3, 100), 8 * 8  # that a site is new, which of the columns that are added up have content
    always = ["count", "mean", "deviation", "min", "max"]
    assert merged(values, "mean")[1] == 8 * 101 * len(always) + told
    assert merged(values, "abs_mean")[1] == 8 * 101 * (len(always) + 1) + told
    values[0, :3] = torch.tensor([0.0, math.nan, math.inf])
    assert merged(values, "abs_mean")[1] == 8 * 101 * (len(always) + 4) + told


def test_the_monitor_counts_histograms_only_where_a_rule_reads_them():
    single, half = torch.zeros(1), torch.zeros(1, dtype=torch.float16)
    assert not needs_histogram(Site("fc", "output"), half)
    assert not needs_histogram(Site("fc", "grad_output"), single.bfloat16())
    assert needs_histogram(Site("fc", "grad_output"), half)
