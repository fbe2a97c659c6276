"""`Replicas`: compares weights that should be alike on all ranks, bit for bit."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from hookboard.base.jobs import Steps
from hookboard.base.ranks import Ranks, local
from hookboard.base.rounds import once, together
from hookboard.callbacks.weights import Part
from hookboard.health import Apart
from hookboard.measure import is_plain
from hookboard.model.parameters import Weight

_WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Bytes of a number to the type that its bits are read as."""

_LOWEST_BITS = (1 << 52) - 1
"""The bits of a checksum that are kept: float64, in which ranks exchange it, holds them exactly."""

_NUMBERS = 3
"""The numbers of a tensor: see `_numbers_of`."""


class Compared(NamedTuple):
    """A tensor that is compared with those of other ranks that have all of this in common.

    Args:
        when: `before` the first step of the fit, or `after` a step; `gradient` for the gradient before a step.
        weight: the name of the weight.
        layout: its shape and dtype, and of a shard which one it is.
    """

    when: str
    weight: str
    layout: str


class Replicas:
    """Finds weights that should be alike on several ranks and are not.

    They should be if they have been alike before, or if their gradients are. What is split over the ranks by hand, or
    experts, may have one name and shape on all ranks; but there numbers and gradients differ from the beginning.

    Args:
        part: the part of each weight that is compared.
    """

    def __init__(self, part: Part) -> None:
        self._part = part
        self._has_begun = False
        self._noted: dict[Compared, Tensor] = {}
        self._alike = set[tuple[str, str]]()
        """Name and layout of each weight that has been alike on several ranks."""

    def begin(self, weights: Mapping[str, Weight]) -> None:
        """Note the weights before the first step of the fit; later calls have no effect."""
        if not self._has_begun:
            self._has_begun = True
            self.note("before", weights)

    def note(self, when: str, weights: Mapping[str, Weight]) -> None:
        """Note these weights, or their gradients, see `Compared`."""
        for name, weight in weights.items():
            parameter = weight.parameters[0]
            tensor = parameter.grad if when == "gradient" else parameter
            if weight.is_computed or tensor is None:
                continue
            values = local(tensor.detach())
            if is_plain(values) and values.is_floating_point() and values.element_size() in _WORDS and values.numel():
                values = self._part.of(values) if values.numel() > self._part.above else values
                layout = f"{list(values.shape)} {values.dtype} {_shard(tensor)}"
                self._noted[Compared(when, name, layout)] = _numbers_of(values)

    def take(self) -> tuple[list[Compared], Tensor | None]:
        """Return what was noted since the last call, and its numbers, shape (3 * n,), on a device; and forget it."""
        noted, self._noted = self._noted, {}
        there = next(iter(noted.values()), None)
        return [*noted], None if there is None else torch.cat([one.to(there.device) for one in noted.values()])

    def compare(self, ranks: Ranks, noted: Sequence[Compared], numbers: Sequence[float]) -> Steps[list[Apart]]:
        """Compare what was noted with what other ranks have noted; every rank must take these steps.

        Args:
            ranks: the processes.
            noted: what `take` returned first.
            numbers: what it returned second, on the host.

        Returns:
            The weights that should be alike and are not.
        """
        own = dict(zip(noted, zip(*(numbers[k::_NUMBERS] for k in range(_NUMBERS)), strict=True), strict=True))
        every = yield from ranks.union(own)
        sums = torch.full((2, len(every)), -torch.inf, dtype=torch.float64, device="cpu")
        counts = torch.zeros(2, len(every), dtype=torch.float64, device="cpu")
        for place, one in enumerate(every):
            if one in own:
                checksum, _, varies = own[one]
                sums[:, place] = sums.new_tensor([checksum, -checksum])
                counts[:, place] = counts.new_tensor([1.0, varies])
        sums, counts = yield from ranks.merge(together(once("max", sums), once("sum", counts)))
        alike = dict(zip(every, (sums[0] == -sums[1]).tolist(), strict=True))
        held, varied = (dict(zip(every, each, strict=True)) for each in counts.tolist())
        # A tensor of equal numbers, such as a new bias, may be the same on all ranks by chance.
        self._alike |= {one[1:] for one in every if alike[one] and varied[one] > 1}
        apart = [
            one for one in every if one.when == "after" and held[one] > 1 and not alike[one] and one[1:] in self._alike
        ]
        if not apart:
            return []
        everyones = yield from ranks.gather([own.get(one) for one in apart])
        return [
            Apart(one.weight, _groups(each), alike.get(one._replace(when="gradient")))
            for one, each in zip(apart, zip(*everyones, strict=True), strict=True)
        ]


def _groups(everyones: Sequence[tuple[float, ...] | None]) -> list[tuple[list[int], float]]:
    """Return the ranks that hold the same numbers, and their norm; the largest group first."""
    groups: dict[float, tuple[list[int], float]] = {}
    for rank, numbers in enumerate(everyones):
        if numbers is not None:
            groups.setdefault(numbers[0], ([], numbers[1]))[0].append(rank)
    return sorted(groups.values(), key=lambda group: -len(group[0]))


def _shard(tensor: Tensor) -> list[tuple[int, int]]:
    """Return which shard of a DTensor this rank holds: of each dimension of the mesh that splits it, the coordinate."""
    if not isinstance(tensor, DTensor):
        return []
    splits = [dim for dim, placement in enumerate(tensor.placements) if not placement.is_replicate()]
    return [(dim, tensor.device_mesh.get_local_rank(dim)) for dim in splits]


def _numbers_of(values: Tensor) -> Tensor:
    """Return a checksum of the bits, the norm, and 1 if not all elements are equal, else 0: float64, on the device."""
    bits = values.contiguous().view(_WORDS[values.element_size()]).flatten()
    total = bits.sum(dtype=torch.int64)  # of integers it does not depend on the order
    norm = torch.linalg.vector_norm(values, dtype=torch.promote_types(values.dtype, torch.float32))
    varies = total != bits[0].long() * bits.numel()
    return torch.stack([(total & _LOWEST_BITS).double(), norm.double(), varies.double()])
