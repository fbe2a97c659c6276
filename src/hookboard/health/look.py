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
    """The rows of a batch (its first dimension) whose loss stands out: the mean over their elements that count."""

    function: str
    rows: tuple[int, ...]
    losses: tuple[float, ...]
    usual: float  # the median over the rows whose loss is finite; NaN if there is none
    count: int  # of the rows that have a loss
    rank: int | None = None  # whose batch it is; None for a single process

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
    """The loss of one optimizer step, or of a validation, where it is the one that is logged."""

    step: int
    batch_idx: int  # with gradient accumulation of the last batch; 0 for a validation
    value: float  # the sum of what `backward` was called on, without a GradScaler's scale, averaged over the ranks
    backwards: int = 1  # more if there are several losses for one batch
    worst: WorstRows | None = None  # if it may be a spike and they are known


@dataclass(frozen=True, slots=True)
class Stepped:
    """What an optimizer does with one weight at this step."""

    optimizer: str
    rate: float
    is_adaptive: bool  # if the size of its steps does not depend on the size of the gradient, as in Adam


@dataclass(frozen=True)
class Apart:
    """A weight that is not the same on all ranks that hold it, and should be."""

    weight: str
    groups: Sequence[tuple[Sequence[int], float]]  # ranks with the same numbers, and the RMS there; the largest first
    has_same_gradients: bool | None = None  # on all ranks at this step; None if there are none


@dataclass(frozen=True)
class Look:
    """One measured step, or an evaluation loop."""

    step: int
    batch_idx: int  # 0 for an evaluation
    # Site to reading, in order of execution. In training: outputs with their channels, gradients of outputs, `input`
    # of the layers that take the batch, and weights as the step has used them (`parameter_before`); of those that an
    # optimizer steps also `parameter_grad` and `parameter_update`. In an evaluation: outputs alone. No `abs_mean`: NaN.
    readings: Readings
    losses: Sequence[Loss] = ()  # of all steps since the look before, with this one; of an evaluation if it is logged
    stepped: Mapping[str, Stepped] = field(default_factory=dict)  # by weight, unless frozen now or in no optimizer
    overflowed: bool = False
    frozen: Set[str] = frozenset()
    apart: Sequence[Apart] = ()
    is_scaled: bool = False  # by a GradScaler; gradients are divided by it: which of them underflowed is unknown
    factors: Set[str] = frozenset()  # weights of adapters: how far their product moves, their own steps do not tell
    has_other_weights: bool = False  # if an evaluation ran with other weights than the model had when it began

    def of(self, name: str, role: Role) -> Reading | None:
        """Return the reading of a module's (first) tensor, or parameter, in this role; None if there is none."""
        row = self.readings.places.first.get((name, role))
        return None if row is None else self.readings.at(row)


MEASURED_VALUES_MAX = 1 << 16
"""Most values of a weight that are measured whole; of a larger one every k-th unit is, to bound the cost."""


def every_unit(shape: Sequence[int]) -> int:
    """Return k such that units 0, k, 2 * k ... of a weight hold at most `MEASURED_VALUES_MAX` values, or are one unit.

    >>> every_unit((1000, 200)), every_unit((14_336, 4096)), every_unit((11_008, 4096))
    (4, 896, 693)
    """
    if len(shape) < 2:
        return 1
    # A multiple of the outputs' stride: of each unit whose weights are measured, rules see the outputs too.
    of_outputs, units = channel_stride(shape[0]), max(1, MEASURED_VALUES_MAX // max(1, math.prod(shape[1:])))
    return of_outputs * max(1, -(-shape[0] // (units * of_outputs)))


def needs_histogram(site: Site, tensor: Tensor) -> bool:
    """Return True if a rule reads the histogram of this tensor: of gradients of outputs in float16."""
    return site.role == "grad_output" and tensor.dtype is torch.float16
