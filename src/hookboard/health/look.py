"""`Look`: everything measured at one step, as plain data on the host; and what of a model is measured for it."""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hookboard.base.messages import listed
from hookboard.measure.row import Reading, Readings, channel_stride
from hookboard.model.sites import Role, Site


@dataclass(frozen=True, slots=True)
class WorstRows:
    """The rows of a batch (its first dimension) whose loss stands out.

    Args:
        losses: the loss of each: the mean over its elements that count.
        usual: the median over the rows whose loss is finite; NaN if there is none.
        rank: the rank whose batch it is; None for a single process.
    """

    function: str
    rows: tuple[int, ...]
    losses: tuple[float, ...]
    usual: float
    count: int
    rank: int | None = None

    @property
    def clause(self) -> str:
        """What stands out, as a clause.

        >>> WorstRows("cross_entropy", (3, 5), (20.0, 18.0), 0.5, 8).clause
        'rows 3, 5 have losses of 18 to 20 in cross_entropy() (median of 8 rows: 0.5)'
        """
        where = "" if self.rank is None else f" on rank {self.rank}"
        named = f"row {self.rows[0]}{where} has a loss"
        if len(self.rows) > 1:
            named = f"rows {listed(map(str, self.rows), 5)}{where} have losses"
        ends = dict.fromkeys(f"{loss:.3g}" for loss in (min(self.losses), max(self.losses)))
        usual = "" if math.isnan(self.usual) else f" (median of {self.count} rows: {self.usual:.3g})"
        return f"{named} of {' to '.join(ends)} in {self.function}(){usual}"


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of one optimizer step, or of a validation.

    Args:
        batch_idx: the index of the batch, with gradient accumulation of the last one; 0 for a validation.
        value: the sum of the losses that `backward` was called on in this step, without the scale of a GradScaler.
            With gradient accumulation a Trainer divides each by the number of batches, so that it is their mean. It is
            averaged over the ranks. Of a validation: the loss that is logged.
        backwards: 1 if each batch had one backward pass; more if there are several losses for one batch.
        worst: the rows with the largest loss, if it may be a spike and they are known.
    """

    step: int
    batch_idx: int
    value: float
    backwards: int = 1
    worst: WorstRows | None = None


@dataclass(frozen=True, slots=True)
class Stepped:
    """What an optimizer does with one weight at this step.

    Args:
        is_adaptive: True if the size of its steps does not depend on the size of the gradient, as in Adam.
    """

    optimizer: str
    rate: float
    is_adaptive: bool


@dataclass(frozen=True)
class Apart:
    """A weight that is not the same on all ranks that hold it, and should be.

    Args:
        groups: the ranks that hold the same numbers, and the RMS of what is measured of these; the largest group first.
        has_same_gradients: whether its gradients at this step are the same on all ranks; None if there are none.
    """

    weight: str
    groups: Sequence[tuple[Sequence[int], float]]
    has_same_gradients: bool | None = None


@dataclass(frozen=True)
class Look:
    """One measured step, or an evaluation loop.

    Args:
        batch_idx: the index of its batch; 0 for an evaluation.
        readings: site to reading, in the order of execution. In training: outputs with their channels, gradients of
            outputs, `input` of the layers that take the batch, and weights as the step has used them
            (`parameter_before`); of those that an optimizer steps also `parameter_grad` and `parameter_update`. In an
            evaluation: outputs alone. `abs_mean` is not measured: NaN.
        losses: the losses of all steps since the look before, this step included, in order; of an evaluation its
            loss, if it is logged.
        stepped: what the optimizers do with each weight, by its name; a weight that no optimizer holds, or that is
            frozen now, is not there.
        apart: the weights that should be the same on all ranks and are not.
        is_scaled: True if there is a GradScaler; gradients are divided by its scale, so that it is unknown which of
            them underflowed.
        factors: the weights that are the factors of an adapter. Their steps alone do not tell how far they move the
            frozen weight that it adds to.
        has_other_weights: True if an evaluation ran with other weights than the model had when it began.
    """

    step: int
    batch_idx: int
    readings: Readings
    losses: Sequence[Loss] = ()
    stepped: Mapping[str, Stepped] = field(default_factory=dict)
    overflowed: bool = False
    frozen: Set[str] = frozenset()
    apart: Sequence[Apart] = ()
    is_scaled: bool = False
    factors: Set[str] = frozenset()
    has_other_weights: bool = False

    def of(self, name: str, role: Role) -> Reading | None:
        """Return the reading of a module's (first) tensor, or parameter, in this role; None if there is none."""
        row = self.readings.places.first.get((name, role))
        return None if row is None else self.readings.at(row)


MEASURED_VALUES_MAX = 1 << 16
"""Maximum number of values of a weight that are measured whole. Of a larger one only every k-th unit is, so that the
cost does not grow with its size."""


def every_unit(shape: Sequence[int]) -> int:
    """Return k such that units 0, k, 2 * k ... of a weight hold at most `MEASURED_VALUES_MAX` values, or are one unit.

    It is 1 for small weights, and for any shape of fewer than two dimensions. It is a multiple of `channel_stride` of
    as many units: of each unit whose weights are measured, the outputs are measured too, and rules compare the two.

    >>> every_unit((1000, 200)), every_unit((14_336, 4096)), every_unit((11_008, 4096))
    (4, 896, 693)
    """
    if len(shape) < 2:
        return 1
    of_outputs, units = channel_stride(shape[0]), max(1, MEASURED_VALUES_MAX // max(1, math.prod(shape[1:])))
    return of_outputs * max(1, -(-shape[0] // (units * of_outputs)))


def needs_histogram(site: Site, tensor: Tensor) -> bool:
    """Return True if a rule reads the histogram of this tensor: of gradients of outputs in float16."""
    return site.role == "grad_output" and tensor.dtype is torch.float16
