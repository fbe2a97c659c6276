"""`input_scale`: the range of what the model is given."""

from collections.abc import Iterator

import numpy as np

from hookboard.health.rule import Rule
from hookboard.health.rules.shared import harm_of, severity_of
from hookboard.health.run import Run
from hookboard.health.verdict import Severity, Symptom
from hookboard.measure import FIELDS
from hookboard.recording import Reading

_COUNT, _MEAN, _DEVIATION, _MIN, _MAX = map(FIELDS.index, ("count", "mean", "deviation", "min", "max"))

LARGE = 20.0
"""RMS of the input from which it is not normalized: pixels of 0 to 255 have 100, standardized data 1 (a choice)."""

SMALL = 1e-2
"""RMS of the input under which it is too small for the usual initialization: data divided by 255 twice (a choice)."""

FAINT = 0.05
"""Deviation of the input, as a share of the size of its mean, under which it hardly varies (a choice)."""

WILD = 30.0
"""How many times the RMS of the middle column a column must have (a choice: features in other units)."""

FAR = 5.0
"""And how many robust deviations it must lie away, in log RMS (a choice)."""

GAP = 0.7
"""And by how many powers of ten it must lie beyond all columns that are not wild: counts of words have a long tail, but
no gap in it (a choice)."""

COLUMNS = 4
"""Columns that an input needs for one of them to be out of line (a choice)."""

SPREAD = 0.1
"""The least deviation between columns that is assumed, in powers of ten (a choice)."""


def _input_scale(run: Run) -> Iterator[Symptom]:
    for site, reading in run.now.readings.items():
        if site.role != "input" or reading.is_empty:
            continue
        found = next((said for say in (_nonfinite, _wild, _range, _constant) if (said := say(run, reading))), None)
        if found is not None:
            evidence, advice, severity, size = found
            which = f"tensor {site.index} of the batch: " if site.index else ""
            yield Symptom(site.name, f"{which}{evidence}{harm_of(run)}.", advice, severity, size=size)
            return  # the others of the batch are targets, as a rule


Said = tuple[str, str, Severity, float]


def _nonfinite(run: Run, reading: Reading) -> Said | None:
    count = reading.moments.nonfinite
    if not count:
        return None
    share = count / (count + reading.moments.count)
    evidence = f"{100 * share:.2g} % of the values that go into the model are NaN or infinite"
    return evidence, "Look for missing values in the data, and for a division by 0 in its preparation.", "alarm", 3.0


def _range(run: Run, reading: Reading) -> Said | None:
    rms, deviation = reading.moments.rms, reading.moments.deviation
    span = f"{reading.moments.min:.3g} to {reading.moments.max:.3g}"
    if rms >= LARGE:
        evidence = f"the input lies in {span}, with an RMS of {rms:.3g}; about 1 is usual"
        return evidence, "Scale the input: subtract its mean and divide by its deviation.", severity_of(run), 2.0
    if 0 < rms <= SMALL:
        evidence = f"the input lies in {span}, with an RMS of only {rms:.2g}; about 1 is usual"
        return evidence, "Look whether the input is scaled down twice.", severity_of(run), 2.0
    if 0 < deviation < FAINT * abs(reading.moments.mean) and not _columns_differ(reading):
        evidence = f"the input lies in {span} and varies by {deviation:.2g} around {reading.moments.mean:.3g}"
        return evidence, "Look whether the input is normalized twice; subtract its mean.", severity_of(run), 2.0
    return None


def _columns_differ(reading: Reading) -> bool:
    """Whether columns vary by less than the whole: then the mean of each column is another."""
    if reading.channels is None:
        return False
    return bool(np.median(reading.channels[:, _DEVIATION]) < FAINT * reading.moments.deviation)


def _wild(run: Run, reading: Reading) -> Said | None:
    if reading.channels is None or len(reading.channels) < COLUMNS:
        return None
    rms = np.hypot(reading.channels[:, _MEAN], reading.channels[:, _DEVIATION])
    used = np.flatnonzero(np.isfinite(rms) & (rms > 0))
    if len(used) < COLUMNS:
        return None
    log = np.log10(rms[used])
    middle = float(np.median(log))
    deviation = max(1.4826 * float(np.median(np.abs(log - middle))), SPREAD)
    far = used[(log - middle >= np.log10(WILD)) & ((log - middle) / deviation >= FAR)]
    if not len(far) or len(far) > len(used) / 10 + 1:
        return None
    if np.log10(rms[far].min() / rms[np.setdiff1d(used, far)].max()) < GAP:
        return None
    worst = int(far[np.argmax(rms[far])])
    evidence = (
        f"column {worst} of the input has an RMS of {rms[worst]:.3g}, {len(far)} of {len(rms)} columns are that far "
        f"out; usual: {10**middle:.2g}"
    )
    return evidence, "Scale each column by itself, and look for wrong values in this one.", severity_of(run), 1.5


def _constant(run: Run, reading: Reading) -> Said | None:
    """Columns that never change, apart from those that are 0, such as the border of digits, or 1, such as a bias."""
    looks = [look.readings.get(reading.site) for look in list(run.looks)[-run.window :]]
    columns = [past.channels for past in looks if past is not None and past.channels is not None]
    if len({part.shape for part in columns}) != 1 or len(columns[0]) < 2:
        return None
    units = np.stack(columns)
    if (units[:, :, _COUNT] < 2).any():
        return None
    low, high = units[:, :, _MIN].min(axis=0), units[:, :, _MAX].max(axis=0)
    constant = np.flatnonzero((low == high) & (low != 0) & (low != 1))
    if not len(constant):
        return None
    column = int(constant[0])
    evidence = f"{len(constant)} of {len(low)} columns of the input never change: column {column} is {low[column]:.3g}"
    return evidence, "Look whether this column was meant to be filled, or leave it out.", "note", 1.0


INPUT_SCALE = Rule("input_scale", _input_scale)
