"""`input_scale`: the range of the data that the model is given."""

from collections.abc import Iterator

import numpy as np

from hookboard.health.rule import Finding, Rule, Severity
from hookboard.health.rules.shared import are_targets_unscaled, counted, harm_of, severity_of
from hookboard.health.run import Run
from hookboard.measure.row import FIELDS, Reading, channel_stride
from hookboard.model.layers import NORM_KINDS
from hookboard.model.sites import Site

_COUNT, _MEAN, _DEVIATION, _MIN, _MAX = map(FIELDS.index, ("count", "mean", "deviation", "min", "max"))

INPUT_RMS_LARGE = 20.0
"""RMS above which an input counts as not normalized (a choice): pixels of 0 to 255 have 100, standardized data 1."""

INPUT_RMS_SMALL = 1e-2
"""RMS of the input below which it is too small for the usual initialization: data divided by 255 twice (a choice)."""

INPUT_VARIATION_MIN = 0.05
"""Standard deviation of the input, as a share of the size of its mean, below which it hardly varies (a choice)."""

WILD_COLUMN_FACTOR = 30.0
"""A column is wild if its RMS is this many times that of the median column (a choice: features in other units)."""

WILD_COLUMN_DEVIATIONS = 5.0
"""A wild column must also lie this many robust standard deviations away, in log RMS (a choice)."""

WILD_COLUMN_GAP_DECADES = 0.7
"""A wild column lies so many powers of ten beyond all others: word counts have a tail without a gap (a choice)."""

TARGET_NAMES = frozenset({"y", "label", "labels", "target", "targets", "num_items_in_batch"})
"""Names of tensors of a batch that are no inputs; the last is a count that transformers' Trainer adds."""

EQUAL_VALUES_MIN = 64
"""Number of values of an input from which they must not all be equal (a choice: one per sample may be constant)."""

ONE_SAMPLE_LOOKS_MIN = 8
"""Number of looks at which all values must be equal where a batch is one sample (a choice: where half of the samples
are 0 throughout and half are 1, all looks show 0 in 1 of 256 cases)."""

INPUT_COLUMNS_MIN = 4
"""An input needs at least this many columns for one of them to be out of line (a choice)."""

COLUMN_SPREAD_FLOOR_DECADES = 0.1
"""Floor of the deviation between columns, in powers of ten (a choice)."""


def _input_scale(run: Run) -> Iterator[Finding]:
    for site in run.now.readings.places.of_role("input"):
        reading = run.now.readings.get(site)
        if reading is None or not (reading.moments.count or reading.moments.nonfinite):
            continue
        if site.index in run.facts.unread:
            continue
        says = (_nonfinite, _same, _wild, _range, _constant) if _is_input(site) else (_nonfinite,)
        for say in says:
            found = say(run, site, reading)
            if found is None:
                continue
            evidence, advice, severity, size = found
            which = f"in tensor {site.index} of the batch, " if site.index else ""
            evidence = f"{which}{evidence}{harm_of(run)}."
            yield Finding(site.name, evidence, advice, severity, size=size, is_root=True)  # it follows from nothing
            return


def _is_input(site: Site) -> bool:
    """Return True if a tensor of the batch seems to be an input: the first element, with no key such as "labels"."""
    first, *_, last = site.index.split("/") if "/" in site.index else (site.index, site.index)
    if first.isdigit() and int(first) > 0:
        return False
    return last.lower() not in TARGET_NAMES


Said = tuple[str, str, Severity, float]  # evidence, advice, severity and size of a `Finding`


def _nonfinite(run: Run, site: Site, reading: Reading) -> Said | None:
    count = reading.moments.nonfinite
    if not count:
        return None
    share = count / (count + reading.moments.count)
    evidence = f"{100 * share:.3g}% of the values{'' if site.index else ' of the batch'} are NaN or infinite"
    advice = "Look for missing values in the data, and for a division by 0 in its preprocessing."
    if not _is_replaced_inside(run):
        return evidence, advice, "alarm", 3.0
    return f"{evidence}, yet the model's outputs are finite", advice, severity_of(run), 3.0


def _is_replaced_inside(run: Run) -> bool:
    """Return True if all layers' outputs and the loss are finite: then the model replaces bad inputs."""
    outputs = [run.now.readings.get(site) for site in run.now.readings.places.of_role("output")]
    return bool(outputs) and run.losses.is_finite and not any(out and out.moments.nonfinite for out in outputs)


def _same(run: Run, site: Site, reading: Reading) -> Said | None:
    value = reading.moments.min
    # Ones are a mask that lets everything through.
    if reading.moments.count < EQUAL_VALUES_MIN or reading.moments.max > value or value == 1:
        return None
    is_one_sample = reading.channels is not None and reading.channels[:, _COUNT].max() <= 1
    if is_one_sample and not _was_same(run, site, value):
        return None
    evidence = f"all {reading.moments.count:.0f} values are {value:.3g}"
    advice = "Check how the data is loaded and preprocessed, because the input does not vary."
    return evidence, advice, severity_of(run), 3.0


def _was_same(run: Run, site: Site, value: float) -> bool:
    looks = list(run.looks) if run.first is run.looks[0] else [run.first, *run.looks]
    known = [past.moments for look in looks if look is not None and (past := look.readings.get(site)) is not None]
    return len(known) >= ONE_SAMPLE_LOOKS_MIN and all((past.min, past.max) == (value, value) for past in known)


def _range(run: Run, site: Site, reading: Reading) -> Said | None:
    rms, deviation = reading.moments.rms, reading.moments.deviation
    span = f"{reading.moments.min:.3g} to {reading.moments.max:.3g}"
    is_faint = 0 < deviation < INPUT_VARIATION_MIN * abs(reading.moments.mean) and not _columns_differ(reading)
    is_faint &= site.index not in run.facts.taken
    is_usual = INPUT_RMS_SMALL < rms < INPUT_RMS_LARGE or not rms
    # Beside another tensor that is not scaled, one of usual size is taken with the size of both.
    size = rms if is_usual else run.facts.taken.get(site.index, rms)
    if (INPUT_RMS_SMALL < size < INPUT_RMS_LARGE and not is_faint) or not rms or _begins_with_norm(run):
        return None
    severity = severity_of(run)
    at = " where weights take it" if site.index in run.facts.taken else ""
    if size >= INPUT_RMS_LARGE:
        evidence = f"the input ranges from {span}, with an RMS of {size:.3g}{at}; about 1 is usual"
        both = "Scale the input and the targets: subtract the mean of each and divide by its standard deviation."
        alone = "Scale the input: subtract its mean and divide by its standard deviation."
        return evidence, both if are_targets_unscaled(run) else alone, severity, 2.0
    if size <= INPUT_RMS_SMALL:
        evidence = f"the input ranges from {span}, with an RMS of only {size:.2g}{at}; about 1 is usual"
        return evidence, "Check whether the input is scaled down twice.", severity, 2.0
    evidence = f"the input ranges from {span} and varies by {deviation:.2g} around {reading.moments.mean:.3g}"
    return evidence, "Check whether the input is normalized twice, or subtract its mean.", severity, 2.0


def _begins_with_norm(run: Run) -> bool:
    first = next((layer for layer in run.layers if layer.weights and run.now.of(layer.name, "output")), None)
    return first is not None and first.kind in NORM_KINDS


def _columns_differ(reading: Reading) -> bool:
    """Return True if the median column varies far less than all values together: the columns have different means."""
    if reading.channels is None:
        return False
    return bool(np.median(reading.channels[:, _DEVIATION]) < INPUT_VARIATION_MIN * reading.moments.deviation)


def _wild(run: Run, site: Site, reading: Reading) -> Said | None:
    if reading.channels is None or len(reading.channels) < INPUT_COLUMNS_MIN or site.index in run.facts.taken:
        return None
    rms = np.hypot(reading.channels[:, _MEAN], reading.channels[:, _DEVIATION])
    used = np.flatnonzero(np.isfinite(rms) & (rms > 0))
    if len(used) < INPUT_COLUMNS_MIN:
        return None
    log = np.log10(rms[used])
    middle = float(np.median(log))
    deviation = max(1.4826 * float(np.median(np.abs(log - middle))), COLUMN_SPREAD_FLOOR_DECADES)
    far = used[(log - middle >= np.log10(WILD_COLUMN_FACTOR)) & ((log - middle) / deviation >= WILD_COLUMN_DEVIATIONS)]
    if not len(far) or len(far) > len(used) / 10 + 1:
        return None
    if np.log10(rms[far].min() / rms[np.setdiff1d(used, far)].max()) < WILD_COLUMN_GAP_DECADES:
        return None
    worst = int(far[np.argmax(rms[far])])
    evidence = (
        f"column {worst * channel_stride(reading.width)} of the input has an RMS of {rms[worst]:.3g}, while a typical "
        f"column has {10**middle:.2g} ({counted(len(far), len(rms), 'columns', reading.sample_of)} "
        f"{'is' if len(far) == 1 else 'are'} this extreme)"
    )
    return evidence, "Scale each column separately, and look for wrong values in this one.", severity_of(run), 1.5


def _constant(run: Run, site: Site, reading: Reading) -> Said | None:
    """Report columns of the input that had one value over the latest `window` looks; None if none is known."""
    looks = [look.readings.get(site) for look in list(run.looks)[-run.window :]]
    seen = [past for past in looks if past is not None and past.channels is not None]
    columns = [past.channels for past in seen if past.channels is not None]
    if len({past.width for past in seen}) != 1 or len(columns[0]) < 2:
        return None
    units = np.stack(columns)
    if (units[:, :, _COUNT] < 2).any():
        return None
    low, high = units[:, :, _MIN].min(axis=0), units[:, :, _MAX].max(axis=0)
    # A column of 1 may be a bias; the least number may be that of a border, 0 unless the pixels were scaled.
    constant = np.flatnonzero((low == high) & (low != 0) & (low != 1) & (low != low.min()))
    if not len(constant):
        return None
    first = int(constant[0])
    evidence = (
        f"{counted(len(constant), len(low), 'columns', seen[0].sample_of)} of the input never "
        f"{'changes' if len(constant) == 1 else 'change'}: column "
        f"{first * channel_stride(seen[0].width)} is always {low[first]:.3g}"
    )
    return evidence, "Check whether this column should hold data, or remove it.", "note", 1.0


INPUT_SCALE = Rule("input_scale", _input_scale, look_at="health/activation_rms")
