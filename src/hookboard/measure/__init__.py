"""The whole way of a number: hooks on modules, tensors measured as rows, rows merged into readings, statistics of them.

`taps.py` hooks modules and shows their tensors to an observer. `Recorder` measures each as a row, copies the rows of a
step to the host, merges them over the ranks and makes the readings.

`measure` returns the row of a single tensor, and `measure_channels` a row for each channel too. Three backends do the
work, each in a file: `native` calls the kernel in C, whose `measure` returns None for a tensor that it cannot read;
`on_gpu` launches the one of Triton; `by_torch` measures all. Recorders see tensors of the same form in each step, and
ask the kernels with less overhead: `form_of` describes how they read a tensor, and `read` in `native` and
`measure_into` in `on_gpu`, which merges it into rows in memory, read others like it.
"""

from hookboard.measure.attention import AttentionWatch
from hookboard.measure.backward_calls import hear_backward, unhear_backward
from hookboard.measure.card import has_kernels, measuring_device, needs_host
from hookboard.measure.columns import empty_row
from hookboard.measure.derived import DERIVED
from hookboard.measure.fused import fused_layers
from hookboard.measure.gradients import Observer, Switch, watch_output, why_no_gradient
from hookboard.measure.histogram import BINS, Histogram, histograms
from hookboard.measure.hooked import EDITS_GRADIENTS, EDITS_VALUES, READS_BEFORE_EDITS, hooked
from hookboard.measure.measuring import measure, measure_channels
from hookboard.measure.memory import is_plain
from hookboard.measure.merge import merge_rows
from hookboard.measure.module_tap import UNKNOWN
from hookboard.measure.native import form_of
from hookboard.measure.own_call import as_own_call, is_own_call, own_call, spare_of
from hookboard.measure.packet import sent_together
from hookboard.measure.readings import Places, Reading, ReadingList, Readings
from hookboard.measure.recorder import Recorder
from hookboard.measure.row import (
    FIELDS,
    MAX_CHANNEL_ROW_BYTES,
    MAX_CHANNEL_ROWS,
    WIDTH,
    Moments,
    channel_row_count,
    channel_stride,
)
from hookboard.measure.statistics import DEFAULT, FORMULAS, Plan, Statistic, StatisticTable, as_list, plan
from hookboard.measure.taps import NO_GRADIENT, Taps

__all__ = [
    "BINS",
    "DEFAULT",
    "DERIVED",
    "EDITS_GRADIENTS",
    "EDITS_VALUES",
    "FIELDS",
    "FORMULAS",
    "MAX_CHANNEL_ROWS",
    "MAX_CHANNEL_ROW_BYTES",
    "NO_GRADIENT",
    "READS_BEFORE_EDITS",
    "UNKNOWN",
    "WIDTH",
    "AttentionWatch",
    "Histogram",
    "Moments",
    "Observer",
    "Places",
    "Plan",
    "Reading",
    "ReadingList",
    "Readings",
    "Recorder",
    "Statistic",
    "StatisticTable",
    "Switch",
    "Taps",
    "as_list",
    "as_own_call",
    "channel_row_count",
    "channel_stride",
    "empty_row",
    "form_of",
    "fused_layers",
    "has_kernels",
    "hear_backward",
    "histograms",
    "hooked",
    "is_own_call",
    "is_plain",
    "measure",
    "measure_channels",
    "measuring_device",
    "merge_rows",
    "needs_host",
    "own_call",
    "plan",
    "sent_together",
    "spare_of",
    "unhear_backward",
    "watch_output",
    "why_no_gradient",
]
