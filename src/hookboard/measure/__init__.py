"""From a tensor to a row: numbers such as count, mean and deviation that merge exactly, and the statistics from them.

`measure` takes a tensor and returns its row; `measure_channels` returns a row for each channel too. `form_of` says how
the compiled kernel reads a tensor: with that, `read` does either for the next one like it. Nothing else in this
folder is given tensors of a model.
"""

from hookboard.measure.accelerator import tell_of_compiling
from hookboard.measure.columns import Columns, empty_row, width_of
from hookboard.measure.cpu import forget_scratch
from hookboard.measure.derived import DERIVED
from hookboard.measure.device import measuring_device, needs_host
from hookboard.measure.door import ChannelRows, measure, measure_channels
from hookboard.measure.histograms import BINS, Histogram, histograms
from hookboard.measure.merge import merge_rows
from hookboard.measure.native import (
    Form,
    can_subtract,
    form_of,
    is_like,
    read,
    tell_of_missing_kernel,
)
from hookboard.measure.row import (
    EMPTY,
    FIELDS,
    MOST_CHANNELS,
    MOST_ROW_BYTES,
    REQUESTABLE,
    WIDTH,
    Moments,
    Row,
    elements_in,
    every_of,
    looked_at,
)
from hookboard.measure.statistics import (
    DEFAULT,
    FORMULAS,
    Plan,
    Statistic,
    StatisticColumns,
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
    "MOST_CHANNELS",
    "MOST_ROW_BYTES",
    "REQUESTABLE",
    "WIDTH",
    "ChannelRows",
    "Columns",
    "Form",
    "Histogram",
    "Moments",
    "Plan",
    "Row",
    "Statistic",
    "StatisticColumns",
    "as_list",
    "blocks_of",
    "can_subtract",
    "elements_in",
    "empty_row",
    "every_of",
    "forget_scratch",
    "form_of",
    "histograms",
    "is_like",
    "looked_at",
    "measure",
    "measure_channels",
    "measuring_device",
    "merge_rows",
    "needs_host",
    "plan",
    "read",
    "single_at_least",
    "tell_of_compiling",
    "tell_of_missing_kernel",
    "width_of",
]
