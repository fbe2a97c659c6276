"""`Replicas`: compares weights that should be alike on all ranks, bit for bit."""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from hookboard.base.ranks import Ranks
from hookboard.base.torch_private import is_left_to_ranks
from hookboard.callbacks.weights import Part
from hookboard.health.look import Apart
from hookboard.measure.memory import is_plain
from hookboard.model.parameters import Weight

_WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int32}
"""Bytes of a number to the type that its bits are read as, so short that what is added up fits into 64 bits."""

_PLACES = 1021
"""Where an element lies counts in a checksum modulo this: a prime, so that no row of a usual weight is as long."""

_MIXING = 0x1E3779B97F4A7C15
"""An odd number, whose powers are as good as random: what lies at different places does not cancel out (a choice)."""

_LOST_BITS = 12
"""The lowest bits of a checksum, which are left out: float64, in which ranks exchange it, holds the others exactly."""

_NUMBERS = 4
"""The numbers of a tensor: see `_numbers_of`."""


class Compared(NamedTuple):
    """A tensor that is compared with those of other ranks that have all of this in common.

    Args:
        when: `before` the first step of the fit, or `after` a step; `gradient` for the gradient before a step.
        weight: the name of the weight.
        layout: its shape and dtype.
    """

    when: str
    weight: str
    layout: str


class Replicas:
    """Finds weights that should be alike on several ranks and are not.

    They should be if they have been alike before, or if their gradients are. What is split over the ranks by hand, or
    experts, may have one name and shape on all ranks, and even begin alike; but there gradients differ from the first
    step, while those of other weights are alike.

    Args:
        part: the part of each weight that is compared.
    """

    def __init__(self, part: Part) -> None:
        self._part = part
        self._has_begun = False
        self._noted: dict[Compared, Tensor] = {}
        self._alike = set[tuple[str, str]]()
        """Name and layout of each weight that has been alike on several ranks."""
        self._meant = set[tuple[str, str]]()
        """Those of each weight that is meant to differ."""

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
            if weight.is_computed or tensor is None or isinstance(tensor, DTensor) or is_left_to_ranks(parameter):
                continue
            values = tensor.detach()
            if is_plain(values) and values.is_floating_point() and values.element_size() in _WORDS and values.numel():
                values = self._part.of(values) if values.numel() > self._part.above else values
                self._noted[Compared(when, name, f"{list(values.shape)} {values.dtype}")] = _numbers_of(values)

    def take(self) -> tuple[list[Compared], Tensor | None]:
        """Return what was noted since the last call, and its numbers, shape (4 * n,), on a device; and forget it."""
        noted, self._noted = self._noted, {}
        there = next(iter(noted.values()), None)
        return [*noted], None if there is None else torch.cat([one.to(there.device) for one in noted.values()])

    def compare(self, ranks: Ranks, noted: Sequence[Compared], numbers: Sequence[float]) -> list[Apart]:
        """Compare what was noted with what other ranks have noted; every rank must call this.

        Args:
            ranks: the processes.
            noted: what `take` returned first.
            numbers: what it returned second, on the host.

        Returns:
            The weights that should be alike and are not.
        """
        own = dict(zip(noted, zip(*(numbers[k::_NUMBERS] for k in range(_NUMBERS)), strict=True), strict=True))
        every = ranks.union(own)
        sums = torch.full((2, len(every)), -torch.inf, dtype=torch.float64, device="cpu")
        counts = torch.zeros(2, len(every), dtype=torch.float64, device="cpu")
        for place, one in enumerate(every):
            if one in own:
                checksum, _, lowest, highest = own[one]
                sums[:, place] = sums.new_tensor([checksum, -checksum])
                # After an overflow all may be NaN on all ranks.
                counts[:, place] = counts.new_tensor([1.0, 0 < highest - lowest < math.inf])
        sums, counts = ranks.max(sums), ranks.sum(counts)
        alike = dict(zip(every, (sums[0] == -sums[1]).tolist(), strict=True))
        held, varied = (dict(zip(every, each, strict=True)) for each in counts.tolist())
        # A tensor of equal numbers, such as a new bias, may be the same on all ranks by chance.
        told = [one for one in every if alike[one] and varied[one] > 1]
        if any(one.when == "gradient" for one in told):  # if all differ, the ranks train apart
            others = {one[1:] for one in every if one.when == "gradient" and held[one] > 1 and not alike[one]}
            self._meant |= others - self._alike
        # What is added up over the ranks, as a last bias of experts, gets the same gradients too.
        meant = {_module(weight) for weight, _ in self._meant}
        self._alike |= {
            one[1:] for one in told if one.when != "gradient" or _module(one.weight) not in meant
        } - self._meant
        apart = [
            one for one in every if one.when == "after" and held[one] > 1 and not alike[one] and one[1:] in self._alike
        ]
        if not apart:
            return []
        everyones = ranks.gather([own.get(one) for one in apart])
        return [
            Apart(one.weight, _groups(each), alike.get(one._replace(when="gradient")))
            for one, each in zip(apart, zip(*everyones, strict=True), strict=True)
        ]


def _module(weight: str) -> str:
    return weight.rpartition(".")[0]


def _groups(everyones: Sequence[tuple[float, ...] | None]) -> list[tuple[list[int], float]]:
    """Return the ranks that hold the same numbers, and their RMS; the largest group first."""
    groups: dict[float, tuple[list[int], float]] = {}
    for rank, numbers in enumerate(everyones):
        if numbers is not None:
            groups.setdefault(numbers[0], ([], numbers[1]))[0].append(rank)
    return sorted(groups.values(), key=lambda group: -len(group[0]))


@functools.cache
def _factors(device: torch.device) -> Tensor:
    """Return what the sum of each place in a checksum is multiplied by."""
    with torch.inference_mode(False):
        return torch.full((_PLACES,), _MIXING, device="cpu").cumprod(0).to(device)


def _numbers_of(values: Tensor) -> Tensor:
    """Return a checksum of the bits, the RMS, and the lowest and the highest element: float64, on the device."""
    bits = values.flatten().view(_WORDS[values.element_size()])
    rest = bits.numel() % _PLACES
    # Sums of integers do not depend on the order; a single sum would not see elements that change places or signs.
    sums = bits[rest:].view(-1, _PLACES).sum(0, dtype=torch.int64)
    sums[:rest].add_(bits[:rest])
    checksum = (sums * _factors(bits.device)).sum() >> _LOST_BITS
    rms = torch.linalg.vector_norm(values, dtype=torch.float64) / math.sqrt(values.numel())
    return torch.stack([number.double() for number in (checksum, rms, *values.aminmax())])
