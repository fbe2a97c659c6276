"""Measures weights around an optimizer step: their gradients, values and updates."""

import functools
from collections.abc import Callable, Collection, Mapping

from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from hookboard.base.torch_private import copied_together
from hookboard.measure.memory import is_plain
from hookboard.measure.table import Table
from hookboard.model.parameters import stepped_by
from hookboard.model.sites import Role, Site

Part = Callable[[Tensor], Tensor]
"""Returns the part of a weight, or of its gradient, that is measured."""

MOST_COPIED_BYTES = 1 << 29
"""Maximum total size in bytes of the weights that are copied before a step (a choice)."""

_site = functools.lru_cache(maxsize=1 << 14)(Site)
"""`Site`, cached: to make one costs more than to look it up, and each due step needs up to four for each weight."""


def measure_gradients(table: Table, optimizer: Optimizer, weights: Mapping[str, nn.Parameter]) -> None:
    """Measure the gradients of the watched weights that this optimizer is about to update, under `parameter_grad`.

    Args:
        table: measures the gradients.
        optimizer: the optimizer.
        weights: the watched weights by name.
    """
    gradients = {name: weight.grad for name, weight in stepped_by(optimizer, weights).items()}
    table.observe_all([(_site(name, "parameter_grad"), g, None) for name, g in gradients.items() if g is not None])


class WeightsBefore:
    """Copies of weights from before the optimizer step, of at most `MOST_COPIED_BYTES` in all.

    Attributes:
        copies: those of the running step by name, of the weights that an optimizer is about to update.
        skipped: the weights for which there was no room.
    """

    def __init__(self) -> None:
        self.copies: dict[str, Tensor] = {}
        self.skipped: dict[str, None] = {}
        self._bytes = 0
        self._spare: dict[str, Tensor] = {}

    def keep(self, optimizer: Optimizer, weights: Mapping[str, nn.Parameter], part: Part) -> None:
        """Add copies of the weights that this optimizer is about to update to `copies`; of each weight only `part`."""
        plain: dict[str, Tensor] = {}
        for name, weight in stepped_by(optimizer, weights).items():
            # If optimizers step several times in one batch, the first step counts.
            if name in self.copies:
                continue
            now = part(weight).detach()
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


def measure_weights(
    table: Table, weights: Mapping[str, nn.Parameter], before: Mapping[str, Tensor], roles: Collection[Role]
) -> None:
    """Measure the weights after the steps of all optimizers, and their updates.

    With the role `parameter_update`, a weight that was copied is measured under `parameter_before` too.

    Args:
        table: measures the tensors.
        weights: the watched weights by name.
        before: copies of the weights from before the steps, by name; of the part that the table measures.
        roles: `parameter`, and `parameter_update` for the updates.
    """
    if not {"parameter", "parameter_update"}.intersection(roles):
        return
    given: list[tuple[Site, Tensor, Tensor | None]] = []
    for name, weight in weights.items():
        if "parameter" in roles:
            given.append((_site(name, "parameter"), weight, None))
        if name in before:
            given.append((_site(name, "parameter_before"), before[name], None))
            given.append((_site(name, "parameter_update"), weight, before[name]))
    table.observe_all(given)
