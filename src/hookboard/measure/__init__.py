"""Reduces a tensor to a row (count, mean, deviation and so on), merges rows exactly, and computes statistics from them.

`measure` takes a tensor and returns its row; `measure_channels` returns a row for each channel too. Three backends do
the work, each in a file: `native` calls the kernel in C, `accelerator` those of Triton, and each has a `measure` that
returns None for a tensor that its kernels cannot read; `by_torch` measures all. Recorders see tensors of the same form
in each step, and ask the kernels with less overhead: `form_of` describes how the one in C reads a tensor, and `read`
reads others like it; `job_of` describes a tensor for those of Triton, and `measure_into` merges it into rows in memory.
"""

from hookboard.measure.accelerator import (
    Job,
    Target,
    has_kernels,
    job_of,
    measure_all_into,
    measure_into,
    new_bins,
    new_rows,
    report_compile_time,
    uploaded_from,
)
from hookboard.measure.card import measuring_device, needs_host
from hookboard.measure.columns import Columns, empty_row, width_of
from hookboard.measure.derived import DERIVED
from hookboard.measure.histogram import BINS, Histogram, histograms
from hookboard.measure.measuring import measure, measure_channels
from hookboard.measure.merge import merge_rows, merging
from hookboard.measure.native import (
    Form,
    form_of,
    read,
    report_missing_kernel,
)
from hookboard.measure.row import (
    EMPTY,
    FIELDS,
    MAX_CHANNEL_ROW_BYTES,
    MAX_CHANNEL_ROWS,
    REQUESTABLE,
    WIDTH,
    ChannelRows,
    Moments,
    Row,
    channel_row_count,
    channel_stride,
    elements_in,
)
from hookboard.measure.statistics import (
    DEFAULT,
    FORMULAS,
    Plan,
    Statistic,
    StatisticTable,
    as_list,
    plan,
)
from hookboard.measure.values import blocks_of, single_at_least

__all__ = [
    "BINS",
    "DEFAULT",
    "DERIVED",
    "EMPTY",
    "FIELDS",
    "FORMULAS",
    "MAX_CHANNEL_ROWS",
    "MAX_CHANNEL_ROW_BYTES",
    "REQUESTABLE",
    "WIDTH",
    "ChannelRows",
    "Columns",
    "Form",
    "Histogram",
    "Job",
    "Moments",
    "Plan",
    "Row",
    "Statistic",
    "StatisticTable",
    "Target",
    "as_list",
    "blocks_of",
    "channel_row_count",
    "channel_stride",
    "elements_in",
    "empty_row",
    "form_of",
    "has_kernels",
    "histograms",
    "job_of",
    "measure",
    "measure_all_into",
    "measure_channels",
    "measure_into",
    "measuring_device",
    "merge_rows",
    "merging",
    "needs_host",
    "new_bins",
    "new_rows",
    "plan",
    "read",
    "report_compile_time",
    "report_missing_kernel",
    "single_at_least",
    "uploaded_from",
    "width_of",
]
