"""`AdaptedWeights`: how far a step moves a frozen weight by way of the adapters beside it."""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from hookboard.health.look import MEASURED_VALUES_MAX, Stepped, every_unit
from hookboard.measure.table import Table
from hookboard.model.sites import Site
from hookboard.tracing.adapters import Adapter


class AdaptedWeights:
    """Measures in one due step what adapters add to frozen weights, before and after the optimizers step.

    The update of such a weight is that of the factors' product times its scale. Of large weights the units are measured
    that all else is measured of.
    """

    def __init__(self) -> None:
        self._adapters: list[Adapter] = []
        self._before: dict[str, Tensor] = {}

    @property
    def factors(self) -> frozenset[str]:
        """The names of the factors whose products are measured."""
        return frozenset(factor.name for one in self._adapters for factor in (one.down, one.up))

    def keep(self, adapters: Sequence[Adapter], weights: Mapping[str, Tensor], stepped: dict[str, Stepped]) -> None:
        """Compute the products before an optimizer steps; only the first call in a step has an effect.

        Args:
            adapters: the adapters of the model.
            weights: the watched weights by name.
            stepped: weight name to how an optimizer steps it; the frozen weights are added, with their factors' values.
        """
        if self._adapters:
            return
        for one in adapters:
            names = [one.weight.name, one.down.name, one.up.name]
            # A weight that is quantized or sharded has other numbers than its own, and is no plain parameter.
            how = next((stepped[name] for name in reversed(names) if name in stepped), None)
            if how is not None and all(type(weights.get(name)) is nn.Parameter for name in names):
                self._adapters.append(one)
                stepped[one.weight.name] = how
        self._before = self._products(weights)

    def measure(self, table: Table, weights: Mapping[str, Tensor]) -> None:
        """Measure the frozen weights and their updates after the optimizers have stepped."""
        for name, after in self._products(weights).items():
            whole = weights[name].detach()[:: _every(weights[name])]
            update = Site(name, "parameter_update"), after, self._before[name]
            table.observe_all([(Site(name, "parameter_before"), whole, None), update])

    def _products(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the sum of what all adapters add to a frozen weight, by its name."""
        found: dict[str, Tensor] = {}
        for one in self._adapters:
            name = one.weight.name
            product = one.product(weights, _every(weights[name]))
            found[name] = found[name] + product if name in found else product
        return found


def _every(weight: Tensor) -> int:
    """Return k such that every k-th unit of a weight is measured."""
    return every_unit(weight.shape) if weight.numel() > MEASURED_VALUES_MAX else 1
