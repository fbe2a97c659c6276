"""The colours of heat maps: of values, of marks, and of cells without a value."""

from typing import Literal

import numpy as np

from hookboard.images.colour import HEAT, LEVELS, NO_VALUE, Pixels

Mark = Literal["alarm", "note"]

SHADES = 200
"""How many colours stand for values; they are the palette's first ones."""

MARKS: dict[Mark, int] = {"alarm": SHADES, "note": SHADES + 8}
"""The palette index of the full colour of each mark; seven paler shades follow, for the edges of letters."""

NOTHING = SHADES + 16
"""The palette index of cells without a value."""

NOT_FINITE = NO_VALUE
"""The palette index of cells whose value is NaN or infinite."""

_RED, _AMBER, _PALE = (205, 20, 30), (190, 110, 0), (222, 226, 232)


def _palette() -> Pixels:
    palette: Pixels = HEAT.copy()
    palette[:SHADES] = HEAT[np.rint(np.linspace(0, LEVELS - 1, SHADES)).astype(int)]
    paler = np.linspace(0, 1, 8, endpoint=False)[:, None]
    for first, colour in ((MARKS["alarm"], _RED), (MARKS["note"], _AMBER)):
        palette[first : first + 8] = np.rint(np.array(colour) * (1 - paler) + 255 * paler)
    palette[NOTHING] = _PALE
    return palette


PALETTE = _palette()
