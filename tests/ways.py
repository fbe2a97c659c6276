"""The ways on which tensors of the CPU are measured, and values that each of them measures truly."""

import math

import numpy as np
import pytest
import torch
from oracle import normal

from hookboard.measure import native
from hookboard.measure.row import BINS, WIDTH, Moments, channel_row_count
from hookboard.measure.statistics import FORMULAS, plan
from hookboard.measure.table import Table
from hookboard.model.sites import Site

SITE = Site("layer", "output")
FLOAT32_MAX = torch.finfo(torch.float32).max

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

KERNELS = ["compiled", "by torch"]


def measured(*tensors, kernel="compiled", statistics=tuple(FORMULAS), **options):
    """The reading of a site that has these tensors in a step."""
    with pytest.MonkeyPatch.context() as patch:
        if kernel == "by torch":
            patch.setattr(native, "_native", None)
        table = Table(plan(list(statistics)), torch.device("cpu"), **options)
        for each in tensors:
            table.open(SITE)(each)
        return table.send()()[SITE]


def by_kernel(tensor, dim=None, counts=None, minus=None):
    """What the compiled kernel gives of one tensor: its row, and those of its channels."""
    how = {"has_minus": minus is not None, "with_abs_mean": True}
    form = native.form_of(tensor, dim, **how)
    channels = 0 if dim is None else tensor.shape[dim]
    rows = torch.empty(1 + channel_row_count(channels), WIDTH, dtype=torch.float64)
    bins = None if counts is None else counts[None]
    native.measure_into((form, tensor, minus, 0, True, -1 if counts is None else 0), rows, bins)
    return rows[0].tolist(), None if dim is None else rows[1:].numpy()


def statistics(row):
    """The statistics that follow from a row."""
    moments = Moments(*torch.as_tensor(row, dtype=torch.float64).numpy()[:WIDTH])
    with np.errstate(all="ignore"):
        return {name: float(formula.value(moments)) for name, formula in FORMULAS.items()}


def no_counts():
    return torch.zeros(BINS, dtype=torch.long)
