"""Whether a loss is far above that of chance, as that of a model that has blown up before its first step."""

FAR_ABOVE = 10.0
"""A loss that is this many times that of chance is far above it (a choice)."""

LEFT = 0.25
"""And either this share of the first losses is left, or it is `ENORMOUS`."""

ENORMOUS = 1e6
"""A loss this many times that of chance is harm, however far it has come down (a choice)."""

ROUNDING = 1.02
"""A first loss above that of chance by this factor, and by what the answers differ, is another loss (a choice)."""

HIGH = 5.0
"""How many times that of chance a first loss must be to show that the initialization is wrong (a choice). In healthy
trainings that begin so, it comes down within 32 steps (seen on the benchmark's tuning half)."""


def starts_high(chance: float | None, start: float) -> bool:
    """Whether the first losses are far above that of a model that knows nothing; False if that is not known.

    >>> starts_high(2.3, 20.0), starts_high(2.3, 4.0), starts_high(None, 20.0)
    (True, False, False)
    """
    return chance is not None and start > HIGH * chance


def is_another(chance: float, reach: float | None, first: float) -> bool:
    """Whether the first loss exceeds what a mean cross entropy can be with these answers: it is another loss.

    >>> is_another(chance=2.3, reach=1.0, first=20.0), is_another(chance=2.3, reach=0.0, first=2.303)
    (True, False)
    """
    return reach is not None and not first <= ROUNDING * chance + reach


def is_far_above(chance: float, reach: float, first: float, start: float, low: float) -> bool:
    """Whether a loss stays far above that of chance.

    The mean cross entropy of a classifier cannot exceed that of chance by more than its answers differ. Where the first
    loss does, it is another loss, such as a sum or a square, and chance tells nothing.

    Args:
        chance: the loss of a classifier that knows nothing.
        reach: the largest output of the model at the first look, less the smallest.
        first: the first loss.
        start: the median of the first losses.
        low: the lowest loss of the last steps.

    >>> is_far_above(chance=2.3, reach=1000.0, first=400.0, start=400.0, low=300.0)
    True
    >>> is_far_above(chance=2.3, reach=1.0, first=400.0, start=400.0, low=300.0)
    False
    """
    if is_another(chance, reach, first):
        return False
    return low > FAR_ABOVE * chance and (low > LEFT * start or low > ENORMOUS * chance)
