"""`Reading`: the result for one site after a step."""

from dataclasses import dataclass

from hookboard.measure import Histogram, Moments
from hookboard.sites import Site, Stage


@dataclass(frozen=True, slots=True)
class Reading:
    """The result for one site after an optimizer step or an evaluation loop.

    Args:
        site: the tensor slot: name, role and index.
        moments: count, mean, extremes and so on of all its tensors in the step, as if they were one tensor.
        statistics: name to value, as they are logged.
        histogram: the histogram of the finite values; None if histograms are off.
        stage: the stage: `train`, `validate`, `test` or `predict`.
        overflowed: whether gradients of the site's optimizer were not finite under a GradScaler, which then skips the
            step. `statistics` then holds the counts, and NaN for all others.
    """

    site: Site
    moments: Moments
    statistics: dict[str, float]
    histogram: Histogram | None
    stage: Stage = "train"
    overflowed: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether none of the tensors had an element."""
        return not (self.moments.count or self.moments.nonfinite)
