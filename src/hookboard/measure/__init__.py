"""From a tensor to a row: numbers such as count, mean and deviation that merge exactly, and the statistics from them.

`measure` takes a tensor and returns its row; `measure_channels` returns a row for each channel too, and
`measure_all` does either for many tensors at once. Nothing else in this folder is given tensors of a model.
"""

from hookboard.measure.accelerator import tell_of_compiling
from hookboard.measure.bins import BINS
from hookboard.measure.channels import MOST_CHANNELS, ChannelRows, can_measure_together, measure_all, measure_channels
from hookboard.measure.columns import Columns
from hookboard.measure.derived import DERIVED, dead_share
from hookboard.measure.door import measure
from hookboard.measure.histograms import Histogram, histogram, histograms
from hookboard.measure.host import measuring_device, needs_host
from hookboard.measure.merge import merge_rows
from hookboard.measure.row import EMPTY, FIELDS, REQUESTABLE, WIDTH, Moments, Row, elements_in
from hookboard.measure.scratch import forget_scratch
from hookboard.measure.statistics import DEFAULT, FORMULAS, Plan, Statistic, as_list, plan, width_of
from hookboard.measure.table import Table

__all__ = [
    "BINS",
    "DEFAULT",
    "DERIVED",
    "EMPTY",
    "FIELDS",
    "FORMULAS",
    "MOST_CHANNELS",
    "REQUESTABLE",
    "WIDTH",
    "ChannelRows",
    "Columns",
    "Histogram",
    "Moments",
    "Plan",
    "Row",
    "Statistic",
    "Table",
    "as_list",
    "can_measure_together",
    "dead_share",
    "elements_in",
    "forget_scratch",
    "histogram",
    "histograms",
    "measure",
    "measure_all",
    "measure_channels",
    "measuring_device",
    "merge_rows",
    "needs_host",
    "plan",
    "tell_of_compiling",
    "width_of",
]
