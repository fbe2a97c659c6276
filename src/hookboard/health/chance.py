"""Whether a loss is far above that of chance, as that of a model that has blown up before its first step."""

FAR_ABOVE = 10.0
"""A loss that is so many times that of chance is far above it (a choice)."""

LEFT = 0.25
"""And either this share of the first losses is left, or it is `ENORMOUS`."""

ENORMOUS = 1e6
"""A loss so many times that of chance is harm, however far it has come down (a choice)."""


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
    if not first <= chance + reach:
        return False
    return low > FAR_ABOVE * chance and (low > LEFT * start or low > ENORMOUS * chance)
