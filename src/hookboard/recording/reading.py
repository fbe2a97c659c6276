"""What the host has of one site after a flush."""

from dataclasses import dataclass

from hookboard.measure import Histogram, Moments
from hookboard.sites import Site, Stage


@dataclass(frozen=True, slots=True)
class Reading:
    """What is known of one site after a step.

    Args:
        site: what was measured.
        moments: of all tensors that passed the site during the step, as if they were one.
        statistics: name to value, as they are logged.
        histogram: of the finite values, where histograms are on.
        stage: in which the tensors passed.
        overflowed: whether the gradients of the step were too large for their type under the scale of a GradScaler,
            which then skips the step. `statistics` holds the counts of such a step, and NaN for all else.
    """

    site: Site
    moments: Moments
    statistics: dict[str, float]
    histogram: Histogram | None
    stage: Stage = "train"
    overflowed: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether no tensor that passed had an element."""
        return not (self.moments.count or self.moments.nonfinite)
