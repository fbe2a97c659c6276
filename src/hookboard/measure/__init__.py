"""Reduces a tensor to a row (count, mean, deviation and so on), merges rows exactly, and computes statistics from them.

`measure` takes a tensor and returns its row; `measure_channels` returns a row for each channel too. `form_of` describes
how the compiled kernel reads a tensor; `read` uses that description to measure further tensors of the same form, with
less overhead. Besides these, only `is_like`, `can_subtract` and `blocks_of` are given tensors of a model.
"""

from hookboard.measure.accelerator import (
    Job,
    Target,
    has_kernels,
    job_of,
    new_bins,
    new_rows,
    report_compile_time,
    uploaded_from,
)
from hookboard.measure.accelerator import measure as measure_job
from hookboard.measure.accelerator import measure_many as measure_jobs
from hookboard.measure.columns import Columns, empty_row, width_of
from hookboard.measure.derived import DERIVED
from hookboard.measure.device import measuring_device, needs_host
from hookboard.measure.histogram import BINS, Histogram, histograms
from hookboard.measure.measuring import ChannelRows, measure, measure_channels
from hookboard.measure.merge import merge_rows, merging
from hookboard.measure.native import (
    Form,
    can_subtract,
    form_of,
    is_like,
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
    "can_subtract",
    "channel_row_count",
    "channel_stride",
    "elements_in",
    "empty_row",
    "form_of",
    "has_kernels",
    "histograms",
    "is_like",
    "job_of",
    "measure",
    "measure_channels",
    "measure_job",
    "measure_jobs",
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
