"""Forms of what a flush gives, for what is packed into a checkpoint: see `hookboard.plain`."""

from typing import Any

import numpy as np
import torch

from hookboard.measure import WIDTH, Histogram, Table
from hookboard.plain import Form, Forms, form_of_dataclass
from hookboard.recording.readings import Places, Readings, Results
from hookboard.sites import Site


def _parts(readings: Readings) -> dict[str, Any]:
    """All of some readings but the histograms of other tensors than outputs, which nobody asks for later."""
    results, sites = readings.results, readings.places.sites
    table, drawn = (None, []) if results is None else (results.statistics, results.histograms)
    there = [rows for rows in readings.channels if rows is not None]
    return {
        "places": readings.places,
        "stage": "train" if results is None else results.stage,
        "rows": readings.rows,
        "channels": np.array([-1 if rows is None else len(rows) for rows in readings.channels], np.int64),
        "widths": np.array(readings.widths, np.int64),
        "channel_rows": np.concatenate(there) if there else np.empty((0, WIDTH)),
        "dtypes": [None if dtype is None else str(dtype).removeprefix("torch.") for dtype in readings.dtypes],
        "names": () if table is None else table.names,
        "values": np.empty((len(sites), 0)) if table is None else table.values,
        "is_there": np.empty((len(sites), 0), bool) if table is None else table.is_there,
        "histograms": {row: each for row, each in enumerate(drawn) if each and sites[row].role == "output"},
    }


def _made(parts: dict[str, Any]) -> Readings:
    places, drawn = parts["places"], parts["histograms"]
    table = Table(parts["names"], parts["values"], parts["is_there"])
    results = Results(parts["stage"], table, [drawn.get(row) for row in range(len(places.sites))])
    channels = _split(parts["channel_rows"], parts["channels"])
    dtypes = [None if name is None else getattr(torch, name) for name in parts["dtypes"]]
    widths = parts.get("widths", np.maximum(parts["channels"], 0)).tolist()  # once all channels had a row
    if not len(parts["rows"]) == len(channels) == len(dtypes) == len(widths) == len(places.sites) == len(table.values):
        raise ValueError("the readings of a look are not those of its sites")
    return Readings(places, parts["rows"], channels, dtypes, widths, lambda: results)


def _split(rows: np.ndarray, sizes: np.ndarray) -> list[np.ndarray | None]:
    ends = np.cumsum(np.maximum(sizes, 0)).tolist()
    # What is kept of one site does not keep all others.
    return [None if size < 0 else rows[end - size : end].copy() for size, end in zip(sizes.tolist(), ends, strict=True)]


_OF_SITES = ("name", "role", "index")

FORMS: Forms = {
    Places: Form(
        lambda places: {field: [getattr(site, field) for site in places.sites] for field in _OF_SITES},
        lambda parts: Places([Site(*each) for each in zip(*(parts[field] for field in _OF_SITES), strict=True)]),
    ),
    Histogram: form_of_dataclass(Histogram),
    Readings: Form(_parts, _made),
}
"""Of `Readings` and what belongs to them."""
