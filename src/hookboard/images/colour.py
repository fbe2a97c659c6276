"""The colours of a picture: those of values from 0 to 1, of missing values, of the background and the text."""

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]

# Inferno, by Nathaniel Smith and Stefan van der Walt (matplotlib, CC0): equal steps of value look equally large, and
# lightness alone carries it, so that it survives print and colour blindness. Every 16th of its 256 colours.
_INFERNO = (
    "000004 0b0724 210c4a 3d0965 57106e 71196e 8a226a a32c61 bc3754 "
    "d04545 e35933 f1711f f98c0a fcaa0f f9c932 f2e865 fcffa4"
)
_NO_VALUE = (0, 200, 220)
"""Cyan, which the map does not hold: NaN and infinities."""

LEVELS = 238
NO_VALUE = LEVELS
INK = LEVELS + 1
PAPER = 255
"""Indices of the palette: values below LEVELS, then what has no value, then greys from ink to paper."""


def _palette(values: npt.ArrayLike) -> Pixels:
    """Colours from 0 to 1 at even distances, what has no value, and greys from ink to paper; shape (256, 3)."""
    anchors = np.asarray(values, dtype=float)
    at = np.linspace(0, len(anchors) - 1, LEVELS)
    colours = np.stack([np.interp(at, np.arange(len(anchors)), channel) for channel in anchors.T], axis=1)
    greys = np.repeat(np.linspace(30, 255, PAPER - INK + 1)[:, None], 3, axis=1)
    palette: Pixels = np.rint(np.concatenate([colours, [_NO_VALUE], greys])).astype(np.uint8)
    return palette


HEAT = _palette([[int(code[i : i + 2], 16) for i in (0, 2, 4)] for code in _INFERNO.split()])
GREY = _palette([[0, 0, 0], [255, 255, 255]])


def indices(values: np.ndarray) -> Pixels:
    """The palette index of each value; values outside of 0 to 1 are clipped.

    >>> indices(np.array([0.0, 1.0, 7.0, np.nan])).tolist()
    [0, 237, 237, 238]
    """
    finite = np.isfinite(values)
    clipped = np.clip(np.where(finite, values, 0), 0, 1)
    return np.where(finite, np.rint(clipped * (LEVELS - 1)), NO_VALUE).astype(np.uint8)


def rgb(values: np.ndarray) -> Pixels:
    """Values of shape (...) in the colours of heat: shape (..., 3)."""
    return HEAT[indices(values)]
