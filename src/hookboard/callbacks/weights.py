"""Measures weights around an optimizer step: their gradients, values and updates."""

import functools
import math
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from hookboard.base.messages import listed, warn
from hookboard.base.torch_private import copied_together
from hookboard.measure import (
    Table,
)
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
"""Maximum total size in bytes of the weights that are copied in one step, unless a single one is larger (a choice)."""

MOST_MISSED = 8
"""A weight that no optimizer has stepped keeps its turn for this many logged steps: some optimizers step rarely."""

MOST_WAITING = 1 << 20
"""Maximum number of values of computed weights that are held at once before they are measured."""

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
                measured = part.of(grad) if part is not None and grad.numel() > part.above else grad
                given.append((_site(name, "parameter_grad"), measured, None))
            except Exception as error:  # a gradient of a subclass may not let itself be cut
                _switch_off(table, name, ["parameter_grad"], error)
    table.observe_all(given)


class WeightsBefore:
    """Copies of weights from before the optimizer step. The memory of the copies is used again in the next step."""

    def __init__(self) -> None:
        self.turns: Turns | None = None
        """Chooses the weights that are copied in a step; None if all are."""
        self.copies: dict[str, Tensor] = {}
        """The copies of the running step by name, of the weights that an optimizer is about to update."""
        self._spare: dict[str, Tensor] = {}

    def keep(self, table: Table, optimizer: Optimizer, weights: Mapping[str, Weight], part: Part | None) -> None:
        """Add copies of the weights that this optimizer is about to update to `copies`; of a large one only `part`."""
        stepped, elsewhere = stepped_by(optimizer, weights), dict[str, Tensor]()
        for name, weight in (stepped if self.turns is None else self.turns.of(stepped)).items():
            if name in self.copies:  # if optimizers step several times in one batch, the first step counts
                continue
            now = weight.parameters[0].detach() if weight.is_plain else _in_use(table, name, weight, part)
            if now is None:
                continue
            if weight.is_plain and part is not None and now.numel() > part.above:
                now = part.of(now)
            if type(now) is Tensor and now.is_cuda and now.layout is torch.strided and not now.is_nested:
                elsewhere[name] = now
            else:
                self.copies[name] = _copied(now, self._spare.get(name))
            if self.turns is not None and weight.is_computed:
                self.turns.note(name, now)
        self.copies.update(zip(elsewhere, copied_together([*elsewhere.values()]), strict=True))

    def forget(self) -> None:
        """Restart the turns, because the watched weights have changed; the copies stay until `clear`."""
        if self.turns is not None:
            self.turns.forget()

    def clear(self) -> None:
        """End the step: drop the copies. If weights take turns, those copied now go to the end of the queue."""
        if self.turns is not None:
            self.turns.end(self.copies)
        # On the CPU fresh memory costs as much as the copy; other devices have an allocator for that. With turns, the
        # next step copies other weights.
        has_turns = self.turns is not None and self.turns.waiting
        again = {} if has_turns else self.copies
        self._spare = {
            name: copy for name, copy in again.items() if type(copy) is Tensor and copy.is_cpu and not copy.is_nested
        }
        self.copies = {}


def _copied(tensor: Tensor, spare: Tensor | None) -> Tensor:
    """Return a copy of a tensor, in the memory of `spare` if that has the same shape, dtype and layout."""
    if spare is None or type(tensor) is not Tensor or not tensor.is_cpu or tensor.is_nested:
        return tensor.clone()
    is_alike = (tensor.shape, tensor.dtype, tensor.layout) == (spare.shape, spare.dtype, spare.layout)
    return spare.copy_(tensor) if is_alike else tensor.clone()


def _in_use(table: Table, name: str, weight: Weight, part: Part | None) -> Tensor | None:
    """Return the measured part of a weight as modules use it; None if the user's code that computes it has failed."""
    if weight.is_computed and table.is_off(name, "parameter_before"):
        return None
    try:
        whole = weight.in_use
        return part.of(whole) if part is not None and whole.numel() > part.above else whole
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
    computed = 0
    given: list[tuple[Site, Tensor, Tensor | None]] = []
    for name, weight in weights.items():
        after = weight.parameters[0].detach() if weight.is_plain else _in_use(table, name, weight, part)
        if after is None:
            continue
        if weight.is_plain and part is not None and after.numel() > part.above:
            after = part.of(after)
        if has_values:
            given.append((_site(name, "parameter"), after, None))
        if has_updates and (copy := before.get(name)) is not None:
            given.append((_site(name, "parameter_before"), copy, None))
            given.append((_site(name, "parameter_update"), after, copy))
        computed += 0 if weight.is_plain else after.numel()
        if computed > MOST_WAITING:
            table.observe_all(given)
            given, computed = [], 0
    table.observe_all(given)


class Turns:
    """Chooses which weights are copied in a step: those that have waited longest, up to `MOST_COPIED_BYTES` in total.

    At least one is copied, however large. If all weights fit, all are copied in every step. Every rank chooses the same
    weights.
    """

    def __init__(self) -> None:
        self.waiting: frozenset[str] = frozenset()
        """The names of the weights that were not chosen in the last step."""
        self._missed: dict[str, int] = {}
        """By name, the longest waiting first: in how many turns in a row no optimizer has stepped the weight."""
        self._bytes: dict[str, int] = {}
        self._chosen: set[str] = set()
        self._left = MOST_COPIED_BYTES
        self._first: str | None = None
        self._is_said = False

    def said_once(self) -> str:
        """Return a line for the user once, after the first step in which not all weights were chosen; otherwise ""."""
        if self._is_said or not self.waiting:
            return ""
        self._is_said = True
        needed = sum(self._bytes.values())
        return (
            f"copying all {len(self._bytes)} parameters before a step would take {needed / 1e9:.1f} GB, so they take "
            f"turns: each update is measured in about one in {math.ceil(needed / MOST_COPIED_BYTES)} logged steps"
        )

    def forget(self) -> None:
        """Start anew with other weights; the one that has waited longest comes first if it is still among them."""
        self._first = next(iter(self._missed), self._first)
        self._missed, self._bytes, self._chosen, self._left = {}, {}, set(), MOST_COPIED_BYTES

    def of(self, weights: Mapping[str, Weight]) -> dict[str, Weight]:
        """Return the given weights that are copied in this step; call it before each optimizer's step."""
        for name, weight in weights.items():
            if name not in self._bytes:
                self._bytes[name] = sum(map(bytes_of, weight.parameters))
                self._missed[name] = 0
        self._begin_with_first()
        if len(self._chosen) < len(self._missed):
            self._choose()
        return {name: weight for name, weight in weights.items() if name in self._chosen}

    def _begin_with_first(self) -> None:
        if self._first in self._missed:
            names = list(self._missed)
            at = names.index(self._first)
            self._missed = {name: self._missed[name] for name in names[at:] + names[:at]}
            self._first = None

    def _choose(self) -> None:
        for name in self._missed:
            if name in self._chosen:
                continue
            if self._chosen and self._bytes[name] > self._left:
                break  # those after it must not overtake it
            self._chosen.add(name)
            self._left -= self._bytes[name]

    def note(self, name: str, copied: Tensor) -> None:
        """Record the size in bytes of a computed weight's copy, which may differ from that of its parameters."""
        self._bytes[name] = bytes_of(copied)

    def end(self, copied: Container[str]) -> None:
        """End the step: weights that were chosen go to the end of the queue.

        Args:
            copied: the names of the weights that were copied. A chosen weight that no optimizer has stepped is not
                among them; it keeps its place for up to `MOST_MISSED` turns.
        """
        chosen, self._chosen, self._left = self._chosen, set(), MOST_COPIED_BYTES
        self.waiting = frozenset(self._missed.keys() - chosen)
        if self.waiting:
            for name in [name for name in self._missed if name in chosen]:
                self._pass_on(name, name in copied)

    def _pass_on(self, name: str, was_stepped: bool) -> None:
        """End the turn of a weight: move it to the end of the queue.

        If no optimizer stepped it, it keeps its place, up to `MOST_MISSED` turns in a row.
        """
        missed = self._missed[name] + 1
        if was_stepped or missed >= MOST_MISSED:
            del self._missed[name]
            missed = 0
        # A name that was deleted comes last again.
        self._missed[name] = missed


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
