"""What the ranks have to tell each other: their losses, their NaN or Inf, and which weights differ that should not."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hookboard.base.ranks import Ranks
from hookboard.base.torch_private import is_left_to_ranks
from hookboard.health.look import Apart, Loss
from hookboard.health.rules.numerics import Nonfinite
from hookboard.measure.memory import is_plain


def of_all_ranks(
    ranks: Ranks, losses: Sequence[Loss], events: Sequence[Nonfinite]
) -> tuple[list[Loss], list[Nonfinite]]:
    """Return the mean loss and the first NaN or Inf of each step over all ranks, each of which must call this."""
    everyones = ranks.gather((losses, events))
    return mean_losses([losses for losses, _ in everyones]), first_events([events for _, events in everyones])


def mean_losses(everyones: Sequence[Sequence[Loss]]) -> list[Loss]:
    """Return the loss of each step, averaged over the ranks that have it: its gradient is what all follow."""
    of_steps: dict[int, list[Loss]] = {}
    for rank, losses in enumerate(everyones):
        for loss in losses:
            worst = None if loss.worst is None else replace(loss.worst, rank=rank)
            of_steps.setdefault(loss.step, []).append(replace(loss, worst=worst))
    means = []
    for step, losses in sorted(of_steps.items()):
        rows = [loss.worst for loss in losses if loss.worst is not None]
        worst = max(rows, key=lambda each: max(each.losses), default=None)
        value = sum(loss.value for loss in losses) / len(losses)
        # Where ranks are at different batches of a step, the later one counts.
        batch_idx, backwards = max(loss.batch_idx for loss in losses), max(loss.backwards for loss in losses)
        means.append(Loss(step, batch_idx, value, backwards, worst))
    return means


def first_events(everyones: Sequence[Sequence[Nonfinite]]) -> list[Nonfinite]:
    """Return the first event of each step, of those of all ranks."""
    # Each rank has other batches, so evidence that depends on the batch begins with the rank.
    named = [
        event if event.during in ("start", "optimizer") else replace(event, evidence=f"Rank {rank}: {event.evidence}")
        for rank, events in enumerate(everyones)
        for event in events
    ]
    firsts: dict[int, Nonfinite] = {}
    for event in sorted(named, key=lambda event: event.order):
        firsts.setdefault(event.step, event)
    return list(firsts.values())


_WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int32}
"""Bytes of a number to the type its bits are read as: so short that float64 holds the sum of 2 million exactly."""


class Compared(NamedTuple):
    """A weight after a step, or its gradient before it: compared with those of ranks that have the same."""

    is_gradient: bool
    weight: str
    layout: str  # its shape and dtype


def checksums(
    weights: Mapping[str, nn.Parameter], part: Callable[[Tensor], Tensor], *, is_gradient: bool
) -> dict[Compared, Tensor]:
    """Return checksum and RMS, shape (2,), of the `part` of each weight, or gradient, that can be compared."""
    found: dict[Compared, Tensor] = {}
    for name, weight in weights.items():
        tensor = weight.grad if is_gradient else weight
        if tensor is None or not is_plain(tensor) or is_left_to_ranks(weight):
            continue
        if tensor.is_floating_point() and tensor.element_size() in _WORDS and tensor.numel():
            values = part(tensor.detach())
            found[Compared(is_gradient, name, f"{list(values.shape)} {values.dtype}")] = _numbers_of(values)
    return found


def apart(ranks: Ranks, compared: Iterable[Compared], numbers: Sequence[float]) -> list[Apart]:
    """Return the weights that should be alike on all ranks and are not, by `checksums`; every rank must call this."""
    own = dict(zip(compared, zip(numbers[::2], numbers[1::2], strict=True), strict=True))
    every = ranks.union(own)
    sums = torch.tensor([own[key][0] if key in own else 0.0 for key in every], dtype=torch.float64, device="cpu")
    highest, lowest = ranks.max(torch.stack([sums, -sums])).tolist()
    ends = {key: (high, -low) for key, high, low in zip(every, highest, lowest, strict=True)}
    # Weights should be alike if their gradients are, or if no gradients are: then each rank trains on its own. What is
    # split over the ranks by hand, or experts, may have equal names and shapes, but there gradients differ.
    gradients = {key[1:]: high == low for key, (high, low) in ends.items() if key.is_gradient and (high or low)}
    # What is added up over the ranks, as a last bias of experts, gets the same gradients too.
    meant = {_module(weight) for (weight, _), is_alike in gradients.items() if not is_alike}
    are_alone = not any(gradients.values())
    found = [
        key
        for key, (high, low) in ends.items()
        if not key.is_gradient and high != low and key[1:] in gradients
        if are_alone or (gradients[key[1:]] and _module(key.weight) not in meant)
    ]
    everyones = ranks.gather([own.get(key) for key in found]) if found else []
    groups = map(_groups, zip(*everyones, strict=True))
    # In one group, no other rank has the weight.
    return [Apart(key.weight, each, gradients[key[1:]]) for key, each in zip(found, groups, strict=True) if each[1:]]


def _module(weight: str) -> str:
    return weight.rpartition(".")[0]


def _groups(everyones: Sequence[tuple[float, ...] | None]) -> list[tuple[list[int], float]]:
    """Return the ranks that hold the same numbers, and their RMS; the largest group first."""
    groups: dict[float, tuple[list[int], float]] = {}
    for rank, numbers in enumerate(everyones):
        if numbers is not None:
            groups.setdefault(numbers[0], ([], numbers[1]))[0].append(rank)
    return sorted(groups.values(), key=lambda group: -len(group[0]))


def _numbers_of(values: Tensor) -> Tensor:
    """Return a checksum of the bits, and the RMS: float64, on the device."""
    # A sum of integers does not depend on the order in which a device adds them.
    checksum = values.flatten().view(_WORDS[values.element_size()]).sum(dtype=torch.int64)
    lowest, highest = values.aminmax()
    # 0 for equal numbers, as of a new bias, which ranks may share by chance, and for NaN or Inf, as after an overflow.
    tells = (lowest < highest) & (highest - lowest).isfinite()
    rms = torch.linalg.vector_norm(values, dtype=torch.float64) / math.sqrt(values.numel())
    return torch.stack([checksum.double() * tells, rms])
