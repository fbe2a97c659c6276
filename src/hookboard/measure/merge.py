"""Merges rows into the row of all their values together."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hookboard.measure import native
from hookboard.measure.columns import Columns
from hookboard.measure.rounds import Merging, by_owner, run, together
from hookboard.measure.row import WIDTH, unit_of

EACH = slice(None)
"""Stands for the owner of each row where every row has a result of its own: rows of several processes."""


def merge(rows: Tensor, owner: Tensor, owners: int) -> Tensor:
    """Merge the moments of each owner's rows, see `moments`; `owner` is the index of the result of each row, int64.

    An owner without rows gets the row of an empty tensor.
    """
    by_kernel = native.merge(rows, owner, owners)
    return run(moments(rows, owner), by_owner(owner, owners)) if by_kernel is None else by_kernel


def moments(rows: Tensor, owner: Tensor | slice) -> Merging[Tensor]:
    """Merge moments; `owner` as in `merge`, or EACH.

    The algorithm of Chan, Golub and LeVeque ("Updating formulae and a pairwise algorithm for computing sample
    variances", 1979) for any number of parts: with `n = sum n_i`,

        mean = sum(n_i mean_i) / n,    n deviation^2 = sum(n_i (deviation_i^2 + (mean_i - mean)^2))

    It is computed in units of the owner's largest value, where no square overflows or underflows.
    """
    # The minimum as the largest negative: one round for both.
    (ends,) = yield [("max", torch.stack([-rows[:, 8], rows[:, 9]], dim=1))]
    unit = unit_of(ends[:, 0], ends[:, 1])[:, None]
    count, part = rows[:, :1], rows[:, 1:4] / unit[owner]
    (sums,) = yield [("sum", torch.cat([count, rows[:, 4:8], count * part[:, ::2]], dim=1))]
    at_least_one = sums[:, :1].clamp(min=1)
    means = sums[:, 5:] / at_least_one
    away = part[:, :1] - means[owner, :1]
    (squares,) = yield [("sum", count * (part[:, 1:2].square() + away.square()))]
    deviation = (squares / at_least_one).sqrt_()
    of_unit = torch.cat([means[:, :1], deviation, means[:, 1:]], dim=1) * unit
    return torch.cat([sums[:, :1], of_unit, sums[:, 1:5], -ends[:, :1], ends[:, 1:]], dim=1)


def further(rows: Tensor, owner: Tensor | slice, merged: Tensor, more: Sequence[Columns]) -> Merging[list[Tensor]]:
    """Merge the columns after the moments, see `merge_rows`, with the merged moments of each result."""
    parts: list[Merging[Any]] = []
    start = WIDTH
    for columns in more:
        parts.append(columns.merge(rows[:, start : start + columns.width], rows[:, :WIDTH], owner, merged))
        start += columns.width
    return together(*parts)


def merge_rows(rows: Tensor, owner: Tensor, owners: int, more: Sequence[Columns]) -> Tensor:
    """Merge each owner's rows, moments and further columns, into the row of all their values together.

    The row of an empty tensor changes nothing.
    """
    merged = merge(rows[:, :WIDTH], owner, owners)
    if not more:
        return merged
    return torch.cat([merged, *run(further(rows, owner, merged, more), by_owner(owner, owners))], dim=1)


def merging(rows: Tensor, more: Sequence[Columns]) -> Merging[Tensor]:
    """Merge rows of several processes, each with as many in the same order, as `merge_rows` does."""
    merged = yield from moments(rows[:, :WIDTH], EACH)
    return torch.cat([merged, *(yield from further(rows, EACH, merged, more))], dim=1)
