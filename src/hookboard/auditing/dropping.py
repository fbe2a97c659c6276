"""Finds dropouts that leave next to nothing."""

from collections.abc import Iterator

from hookboard.auditing.calls import Op
from hookboard.auditing.rules import Finding, TracedStep
from hookboard.messages import listed

DROPOUTS = frozenset({"dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"})

HEAVY_SHARE = 0.9
"""Share of values that a dropout must drop to be an alarm: 0.5 is usual, 0.8 the largest in use."""


def dropout(done: TracedStep) -> Iterator[Finding]:
    """Yield an alarm for the dropouts that drop 90 % of the values or more, but not all."""
    heavy = {str(op.place): (op, share) for op in done.step.ops if HEAVY_SHARE <= (share := _dropped(op)) < 1}
    if heavy:
        op, share = next(iter(heavy.values()))
        yield Finding(
            "dropout",
            "alarm",
            op.place.module,
            f"{op.name} at {listed(list(heavy), 3)} drops {share:.0%} of the values, and scales the rest by "
            f"{1 / (1 - share):.3g}: p is the share that is dropped, not the share that is kept",
            f"set p={1 - share:.2g}, or at most 0.5",
        )


def _dropped(op: Op) -> float:
    """Return the share of values that a call drops; 0 for other functions and where it is switched off."""
    if op.name not in DROPOUTS:
        return 0.0
    share = op.arguments.get("p", op.arguments.get("1", 0.5))
    is_on = op.arguments.get("training", op.arguments.get("2", True))
    return float(share) if is_on and isinstance(share, int | float) else 0.0
