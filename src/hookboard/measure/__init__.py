"""The whole way of a number: hooks on modules, tensors measured as rows of a table, the table merged into readings.

`taps.py` hooks modules and shows their tensors to an observer, which `Table.open` returns. A `Table` (`table.py`) finds
out once how the tensors of a site are read. From then on it merges each into the site's row in a `Slab` (`slab.py`),
the memory for all rows on a device: by the kernel in C (`native.py`), by those of Triton (`on_gpu.py`), or where no
kernel reads it by torch (`by_torch.py`). `Table.send` copies the slab to the host, merges the rows with those of other
ranks (`over_ranks.py`), computes the statistics (`statistics.py`), and returns the `Readings` (`readings.py`), whose
columns loggers write and rules judge.

To add a statistic, add a line to `FORMULAS` in `statistics.py`.
"""

from hookboard.measure.attention import AttentionWatch
from hookboard.measure.backward_calls import hear_backward, unhear_backward
from hookboard.measure.card import has_kernels, measuring_device, needs_host
from hookboard.measure.derived import DERIVED
from hookboard.measure.gradients import Observer, Switch, watch_output, why_no_gradient
from hookboard.measure.histogram import BINS, Histogram, histograms
from hookboard.measure.hooked import EDITS_GRADIENTS, EDITS_VALUES, READS_BEFORE_EDITS, Hooks, hooked
from hookboard.measure.memory import is_plain
from hookboard.measure.own_call import as_own_call, is_own_call, own_call, spare_of
from hookboard.measure.readings import Places, Reading, ReadingList, Readings
from hookboard.measure.row import (
    FIELDS,
    MAX_CHANNEL_ROWS,
    WIDTH,
    Moments,
    channel_row_count,
    channel_stride,
)
from hookboard.measure.slab import sent_together
from hookboard.measure.statistics import DEFAULT, FORMULAS, Plan, Statistic, StatisticTable, as_list, plan
from hookboard.measure.table import Table, moments_of
from hookboard.measure.taps import NO_GRADIENT, UNKNOWN, Taps, layers_around

__all__ = [
    "BINS",
    "DEFAULT",
    "DERIVED",
    "EDITS_GRADIENTS",
    "EDITS_VALUES",
    "FIELDS",
    "FORMULAS",
    "MAX_CHANNEL_ROWS",
    "NO_GRADIENT",
    "READS_BEFORE_EDITS",
    "UNKNOWN",
    "WIDTH",
    "AttentionWatch",
    "Histogram",
    "Hooks",
    "Moments",
    "Observer",
    "Places",
    "Plan",
    "Reading",
    "ReadingList",
    "Readings",
    "Statistic",
    "StatisticTable",
    "Switch",
    "Table",
    "Taps",
    "as_list",
    "as_own_call",
    "channel_row_count",
    "channel_stride",
    "has_kernels",
    "hear_backward",
    "histograms",
    "hooked",
    "is_own_call",
    "is_plain",
    "layers_around",
    "measuring_device",
    "moments_of",
    "needs_host",
    "own_call",
    "plan",
    "sent_together",
    "spare_of",
    "unhear_backward",
    "watch_output",
    "why_no_gradient",
]
