"""Rows of channels: merged over calls and ranks, as if all values had been in one tensor."""

import numpy as np
import torch
from oracle import normal

from hookboard.measure import plan
from hookboard.measure.statistics import FORMULAS
from hookboard.recording.recorder import Recorder
from hookboard.sites import Site

A, B = Site("a", "output"), Site("b", "output")


def recorder(**options):
    options = {"channels": lambda site, tensor: 1, **options}
    return Recorder(plan(tuple(FORMULAS)), torch.device("cpu"), **options)


def only(recorder):
    ((reading,), _) = recorder.flush()
    return reading


def true_rows(tensors, dim=1):
    """The row of each channel of all tensors together, by float64 library functions."""
    whole = np.concatenate([t.double().movedim(dim, 0).flatten(1).numpy() for t in tensors], axis=1)
    rows = []
    for values in whole:
        x = values[np.isfinite(values)]
        rows.append(
            [
                len(x),
                np.mean(x),
                np.std(x),
                np.mean(np.abs(x)),
                np.sum(x == 0),
                np.isnan(values).sum(),
                np.isposinf(values).sum(),
                np.isneginf(values).sum(),
                np.min(x),
                np.max(x),
            ]
        )
    return np.array(rows, dtype=np.float64)


def test_calls_of_a_site_merge_for_each_channel():
    mine = recorder()
    parts = [normal(3, 4, 5), normal(2, 4, mean=9.0), normal(7, 4, 2, 2).relu()]
    for part in parts:
        mine.open(A)(part)
    reading = only(mine)
    assert reading.channels.dtype == np.float64
    np.testing.assert_allclose(reading.channels, true_rows([part.reshape(*part.shape[:2], -1) for part in parts]))
