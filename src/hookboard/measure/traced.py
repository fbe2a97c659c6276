"""Measuring by plain tensor operations inside a compiled graph, where rows are merged one by one."""

from collections.abc import Sequence

import torch
from torch import Tensor

from hookboard.measure.bins import as_single, bins_of
from hookboard.measure.statistics import Statistic


def merge_pair(one: Tensor, other: Tensor) -> Tensor:
    """Merge two rows of shape (WIDTH,), by `merge`'s formula for two parts."""
    count = one[0] + other[0]
    share = other[0] / count.clamp(min=1)
    means = one[1:4] + (other[1:4] - one[1:4]) * share
    away = other[1] - one[1]
    squares = one[2].square() * (1 - share) + other[2].square() * share + away.square() * share * (1 - share)
    means = torch.stack([means[0], squares.sqrt(), means[2]])
    extremes = torch.stack([torch.minimum(one[8], other[8]), torch.maximum(one[9], other[9])])
    return torch.cat([count[None], means, one[4:8] + other[4:8], extremes])


def count_without_waiting(counts: Tensor, values: Tensor, weight: Tensor | int) -> None:
    """Add the bins of `values`, of any shape, each `weight` times, to `counts` of shape (BINS,)."""
    bins = bins_of(as_single(values))
    counts.index_add_(0, bins, (counts.new_ones(1) * weight).expand(bins.numel()))


def merge_own_pair(own: Sequence[Statistic], one: Tensor, other: Tensor, weights: tuple[Tensor, Tensor]) -> Tensor:
    """Merge the numbers of two calls by each statistic's rule.

    Args:
        own: the statistics.
        one: shape (len(own),), float64; where nothing was measured yet, each rule's `IDENTITY`.
        other: the same of another call.
        weights: how many elements the tensors of the two had.
    """
    merged = []
    for i, statistic in enumerate(own):
        a, b = one[i], other[i]
        if statistic.merge == "mean":
            merged.append((a * weights[0] + b * weights[1]) / (weights[0] + weights[1]).clamp(min=1))
        elif statistic.merge == "sum":
            merged.append(a + b)
        else:
            merged.append(torch.minimum(a, b) if statistic.merge == "min" else torch.maximum(a, b))
    return torch.stack(merged)
