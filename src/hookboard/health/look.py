"""`Look`: everything that is seen of a training at one measured step, as plain data on the host."""

import functools
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from hookboard.recording import Numbers, Reading, Readings
from hookboard.sites import Role, Site


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of one optimizer step.

    Args:
        step: the optimizer step.
        batch_idx: the index of the batch.
        value: what the backward pass started from, times the number of accumulated batches.
        backwards: how many backward passes of one batch are added up in it; more than one if there are several losses.
    """

    step: int
    batch_idx: int
    value: float
    backwards: int = 1


@dataclass(frozen=True, slots=True)
class Stepped:
    """What an optimizer does with one weight at this step.

    Args:
        optimizer: the class name of the optimizer.
        rate: the learning rate in force.
        is_adaptive: whether the size of its steps does not depend on the size of the gradient, as in Adam.
    """

    optimizer: str
    rate: float
    is_adaptive: bool


@dataclass(frozen=True)
class Look:
    """One measured step.

    Args:
        step: the optimizer step, on the axis of the loggers.
        batch_idx: the index of its batch.
        readings: site to reading, in the order of execution. In training: outputs with their channels, gradients of
            outputs, parameters (after the step), their gradients, `parameter_before` and `parameter_update`, the last
            only of weights that an optimizer holds; and `input` of the layers that take the batch. Their `abs_mean` is
            not measured: NaN.
        losses: of every step since the look before, this one included, in their order.
        stepped: what the optimizers do with each weight, by its name; a weight that no optimizer holds, or that is
            frozen now, is not there.
        overflowed: whether the GradScaler skipped the step.
        frozen: the weights that are not to be trained now (`requires_grad` is False).
        is_scaled: whether there is a GradScaler; gradients are divided by its scale, so that nobody can tell which
            of them underflowed.
    """

    step: int
    batch_idx: int
    readings: Mapping[Site, Reading]
    losses: Sequence[Loss] = ()
    stepped: Mapping[str, Stepped] = field(default_factory=dict)
    overflowed: bool = False
    frozen: Set[str] = frozenset()
    is_scaled: bool = False

    def of(self, name: str, role: Role) -> Reading | None:
        """The reading of a module or parameter: of several tensors the first. None if there is none."""
        row = self.table.places.first(role).get(name)
        return None if row is None else self.table.at(row)

    def numbers(self, name: str, role: Role) -> Numbers | None:
        """The same without its statistics and its histogram, which is faster."""
        row = self.table.places.first(role).get(name)
        return None if row is None else self.table.numbers(row)

    @functools.cached_property
    def table(self) -> Readings:
        """The same readings as rows."""
        return self.readings if isinstance(self.readings, Readings) else Readings.of(self.readings.values())
