"""How much the gradients of one look agree with those of the next."""

import math
from itertools import pairwise

import numpy as np

from hookboard.health.run import Run, median_of
from hookboard.measure import FIELDS

_MEAN = FIELDS.index("mean")


def agreement_of(run: Run) -> float:
    """The median cosine between the gradients of neighbouring looks; NaN if they have no channels.

    Of each weight the mean gradient of each channel is compared: a projection of the gradient.
    """
    looks = list(run.looks)
    cosines = []
    for before, after in pairwise(looks):
        for site, reading in after.readings.items():
            if site.role == "parameter_grad" and reading.channels is not None:
                earlier = before.of(site.name, "parameter_grad")
                if earlier is not None and earlier.channels is not None:
                    cosines.append(_cosine(reading.channels[:, _MEAN], earlier.channels[:, _MEAN]))
    return median_of(cosines)


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    size = float(np.linalg.norm(a) * np.linalg.norm(b)) if a.shape == b.shape else 0.0
    return float(a @ b) / size if size > 0 else math.nan
