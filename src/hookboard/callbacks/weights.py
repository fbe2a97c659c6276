"""Measures weights around an optimizer step: their values, gradients and updates."""

from collections.abc import Collection, Mapping

from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from hookboard.base.torch_private import copied_together
from hookboard.measure.memory import is_plain
from hookboard.measure.table import Table
from hookboard.model.parameters import stepped_by
from hookboard.model.sites import Role, Site

MOST_COPIED_BYTES = 1 << 29
"""Maximum total size in bytes of the weights that are copied before a step (a choice)."""


def measure_gradients(table: Table, optimizer: Optimizer, weights: Mapping[str, nn.Parameter]) -> None:
    """Measure the gradients of the watched weights that this optimizer is about to update, under `parameter_grad`.

    Args:
        table: measures the gradients.
        optimizer: the optimizer.
        weights: the watched weights by name.
    """
    gradients = {name: weight.grad for name, weight in stepped_by(optimizer, weights).items()}
    table.observe_all([(Site(name, "parameter_grad"), g, None) for name, g in gradients.items() if g is not None])


class WeightsBefore:
    """The weights before the optimizer step: measures them, and copies what is measured of their updates.

    Attributes:
        measured: the weights that were measured in the running step, at its start or before an optimizer changed them.
        copies: by name, copies of what is measured of their updates, of at most `MOST_COPIED_BYTES` in all.
        skipped: the weights for which there was no room.
    """

    def __init__(self) -> None:
        self.measured: set[str] = set()
        self.copies: dict[str, Tensor] = {}
        self.skipped: dict[str, None] = {}
        self._bytes = 0
        self._spare: dict[str, Tensor] = {}

    def measure(self, weights: Mapping[str, nn.Parameter], table: Table) -> None:
        """Measure weights under `parameter_before`, unless they were measured in this step."""
        new = {name: weight for name, weight in weights.items() if name not in self.measured and not is_lazy(weight)}
        self.measured |= new.keys()
        table.observe_all([(Site(name, "parameter_before"), weight, None) for name, weight in new.items()])

    def keep(self, optimizer: Optimizer, weights: Mapping[str, nn.Parameter], table: Table) -> None:
        """Copy what is measured of the weights that this optimizer is about to update, and measure them."""
        stepped = stepped_by(optimizer, weights)
        self.measure(stepped, table)
        plain: dict[str, Tensor] = {}
        for name, weight in stepped.items():
            # If optimizers step several times in one batch, the first step counts.
            if name in self.copies:
                continue
            now = table.part(weight).detach()
            # The same on every rank, so that all skip the same weights.
            size = now.numel() * now.element_size() // (now.device_mesh.size() if isinstance(now, DTensor) else 1)
            if self._bytes + size > MOST_COPIED_BYTES:
                self.skipped[name] = None
                continue
            self._bytes += size
            if is_plain(now):
                plain[name] = now
            else:
                self.copies[name] = now.clone()
        spares = [self._spare.pop(name, None) for name in plain]
        self.copies.update(zip(plain, copied_together([*plain.values()], spares), strict=True))

    def clear(self) -> None:
        """End the step: drop the copies."""
        # On the CPU fresh memory costs more than the copy; other devices have an allocator for that.
        self._spare = {name: copy for name, copy in self.copies.items() if is_plain(copy) and copy.is_cpu}
        self.copies, self._bytes = {}, 0
        self.measured.clear()


def measure_weights(
    table: Table, weights: Mapping[str, nn.Parameter], before: WeightsBefore, roles: Collection[Role]
) -> None:
    """Measure the updates of the weights, and the weights themselves, after the steps of all optimizers.

    Args:
        table: measures the tensors.
        weights: the watched weights by name.
        before: what is known of them from before the steps.
        roles: `parameter` for the weights after the steps, and `parameter_update` for the updates.
    """
    given: list[tuple[Site, Tensor, Tensor | None]] = []
    for name, weight in weights.items():
        if "parameter" in roles:
            given.append((Site(name, "parameter"), weight, None))
        if name in before.copies:
            given.append((Site(name, "parameter_update"), weight, before.copies[name]))
    table.observe_all(given)
