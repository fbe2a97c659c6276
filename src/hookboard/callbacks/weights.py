"""Measures weights around an optimizer step: their gradients, values and updates."""

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from hookboard.base.messages import listed, warn
from hookboard.base.torch_private import copied_together
from hookboard.measure.memory import is_plain
from hookboard.measure.table import Table
from hookboard.model.parameters import Weight, stepped_by
from hookboard.model.sites import Role, Site


class Part(NamedTuple):
    """Which part of a large weight, and of its gradient, is measured; a small one is measured whole.

    Args:
        above: number of values above which a weight is large.
        of: returns the part of a large weight or gradient.
    """

    above: int
    of: Callable[[Tensor], Tensor]


MOST_COPIED_BYTES = 1 << 29
"""Maximum total size in bytes of the weights that are copied before a step (a choice)."""

_OF_VALUES: tuple[Role, ...] = ("parameter", "parameter_update", "parameter_before")

_site = functools.lru_cache(maxsize=1 << 14)(Site)
"""`Site`, cached: to make one costs more than to look it up, and each due step needs up to four for each weight."""


def measure_gradients(table: Table, optimizer: Optimizer, weights: Mapping[str, Weight], part: Part | None) -> None:
    """Measure the gradients of the watched weights that this optimizer is about to update, under `parameter_grad`.

    Args:
        table: measures the gradients.
        optimizer: the optimizer.
        weights: the watched weights by name.
        part: the part of each gradient to measure; None for all of it.
    """
    given: list[tuple[Site, Tensor, None]] = []
    for name, weight in stepped_by(optimizer, weights).items():
        grad = None if weight.is_computed else weight.parameters[0].grad
        if grad is not None:
            try:
                given.append((_site(name, "parameter_grad"), _part_of(grad, part), None))
            except Exception as error:  # a gradient of a subclass may not let itself be cut
                _switch_off(table, name, ["parameter_grad"], error)
    table.observe_all(given)


def _part_of(tensor: Tensor, part: Part | None) -> Tensor:
    return part.of(tensor) if part is not None and tensor.numel() > part.above else tensor


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

    def keep(self, table: Table, optimizer: Optimizer, weights: Mapping[str, Weight], part: Part | None) -> None:
        """Add copies of the weights that this optimizer is about to update to `copies`; of a large one only `part`."""
        elsewhere: dict[str, Tensor] = {}
        for name, weight in stepped_by(optimizer, weights).items():
            if name in self.copies:  # if optimizers step several times in one batch, the first step counts
                continue
            now = _in_use(table, name, weight, part)
            if now is None:
                continue
            if self._bytes + bytes_of(now) > MOST_COPIED_BYTES:
                self.skipped[name] = None
                continue
            self._bytes += bytes_of(now)
            if is_plain(now) and now.is_cuda:
                elsewhere[name] = now
            else:
                spare = self._spare.pop(name, None)
                is_alike = spare is not None and is_plain(now) and (now.shape, now.dtype) == (spare.shape, spare.dtype)
                self.copies[name] = spare.copy_(now) if is_alike and spare is not None else now.clone()
        self.copies.update(zip(elsewhere, copied_together([*elsewhere.values()]), strict=True))

    def clear(self) -> None:
        """End the step: drop the copies."""
        # On the CPU fresh memory costs as much as the copy; other devices have an allocator for that.
        self._spare = {name: copy for name, copy in self.copies.items() if is_plain(copy) and copy.is_cpu}
        self.copies, self._bytes = {}, 0


def _in_use(table: Table, name: str, weight: Weight, part: Part | None) -> Tensor | None:
    """Return the measured part of a weight as modules use it; None if the user's code that computes it has failed."""
    if weight.is_plain:
        return _part_of(weight.parameters[0].detach(), part)
    if table.is_off(name, "parameter_before"):
        return None
    try:
        return _part_of(weight.in_use, part)
    except Exception as error:  # a parametrization runs the user's code
        _switch_off(table, name, _OF_VALUES, error)
        return None


def _switch_off(table: Table, name: str, roles: Sequence[Role], error: Exception) -> None:
    """Switch off these roles of a weight with one warning, unless they are off already."""
    if not table.is_off(name, roles[-1]):
        table.switch_off([_site(name, role) for role in roles], error)


def measure_weights(
    table: Table,
    weights: Mapping[str, Weight],
    before: Mapping[str, Tensor],
    roles: Collection[Role],
    part: Part | None,
) -> None:
    """Measure the weights after the steps of all optimizers, and their updates.

    With the role `parameter_update`, a weight that was copied is measured under `parameter_before` too.

    Args:
        table: measures the tensors.
        weights: the watched weights by name.
        before: copies of the weights from before the steps, by name.
        roles: `parameter`, and `parameter_update` for the updates.
        part: the part of each weight to measure, the same as in `before`; None for all of it.
    """
    has_values, has_updates = "parameter" in roles, "parameter_update" in roles
    if not (has_values or has_updates):
        return
    given: list[tuple[Site, Tensor, Tensor | None]] = []
    for name, weight in weights.items():
        after = _in_use(table, name, weight, part)
        if after is None:
            continue
        if has_values:
            given.append((_site(name, "parameter"), after, None))
        if has_updates and (copy := before.get(name)) is not None:
            given.append((_site(name, "parameter_before"), copy, None))
            given.append((_site(name, "parameter_update"), after, copy))
    table.observe_all(given)


def bytes_of(tensor: Tensor) -> int:
    """Return the size of a copy in bytes, 0 if lazy; for a sharded `DTensor` an equal share, the same on every rank."""
    if is_lazy(tensor):
        return 0
    split = 1
    if isinstance(tensor, DTensor):
        parts = zip(tensor.device_mesh.shape, tensor.placements, strict=True)
        split = math.prod(size for size, placement in parts if placement.is_shard())
    return tensor.numel() * tensor.element_size() // split


def say_split(weights: Mapping[str, Weight]) -> None:
    """If weights are split over processes, warn that some rules cannot judge them."""
    split = [name for name, weight in weights.items() if any(isinstance(part, DTensor) for part in weight.parameters)]
    if split:
        warn(
            f"HealthMonitor cannot tell apart the units of {len(split)} weight{'s' * (len(split) > 1)} sharded across "
            f"processes ({listed(split, 3)}): symmetric_units skips them, and dead_units uses only the outputs of "
            "activation modules. Where outputs are sharded too (tensor parallelism), a unit counts as dead only if it "
            "is dead in every shard."
        )
