"""`RateJump`: a learning rate that rose far above all before it."""

from dataclasses import dataclass, replace

from hookboard.health.look import Look
from hookboard.health.spikes import median

RATE_JUMP = 3.0
"""A learning rate that exceeds all before it by this factor has jumped, after the first looks (a choice: a warm-up does
so in its first looks, a restart comes back to where it was)."""


@dataclass(frozen=True)
class RateJump:
    """A learning rate far above all before.

    Args:
        step: the first step at which it may have been in force: that behind the look before.
        seen: the step of the look that showed it.
        before: the largest one until then.
        after: the one that jumped.
        until: the step of the last look at which it was still as high; None while it is.
    """

    step: int
    seen: int
    before: float
    after: float
    until: int | None = None

    def followed(self, look: Look, before: Look) -> "RateJump":
        """The same jump after another look: the rate may have come down, or up again.

        Args:
            look: the new look.
            before: the look before it.
        """
        rate = median([stepped.rate for stepped in look.stepped.values()])
        if rate > RATE_JUMP * self.before:
            return replace(self, until=None)
        has_come_down = self.until is None and rate <= RATE_JUMP * self.before
        return replace(self, until=before.step) if has_come_down else self
