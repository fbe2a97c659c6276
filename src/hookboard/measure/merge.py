"""Merges rows into the row of all their values together."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from hookboard.measure import native
from hookboard.measure.columns import Columns
from hookboard.measure.row import WIDTH, unit_of


def merge(rows: Tensor, owner: Tensor, owners: int) -> Tensor:
    """Merge the moments of each owner's rows into the moments of all their values together.

    The algorithm of Chan, Golub and LeVeque ("Updating formulae and a pairwise algorithm for computing sample
    variances", 1979) for any number of parts: with `n = sum n_i`,

        mean = sum(n_i mean_i) / n,    n deviation^2 = sum(n_i (deviation_i^2 + (mean_i - mean)^2))

    It is computed in units of the owner's largest value, where no square overflows or underflows.

    Args:
        rows: shape (n, WIDTH), float64.
        owner: shape (n,), int64: the index of the result that each row belongs to.
        owners: how many results there are.

    Returns:
        The merged rows, shape (owners, WIDTH); an owner without rows gets the row of an empty tensor.
    """
    if native.can_merge(rows, owner):
        return native.merged(rows, owner, owners)
    merged = rows.new_zeros(owners, WIDTH).index_add_(0, owner, rows)
    low, high = merged[:, 8], merged[:, 9]
    low.fill_(math.inf).scatter_reduce_(0, owner, rows[:, 8], "amin")
    high.fill_(-math.inf).scatter_reduce_(0, owner, rows[:, 9], "amax")

    unit = unit_of(low, high)[:, None]
    part, count = rows[:, 1:4] / unit[owner], rows[:, :1]
    at_least_one = merged[:, :1].clamp(min=1)
    means = part.new_zeros(owners, 3).index_add_(0, owner, count * part).div_(at_least_one)
    squares = count[:, 0] * (part[:, 1].square() + (part[:, 0] - means[owner, 0]).square())
    means[:, 1] = (part.new_zeros(owners).index_add_(0, owner, squares) / at_least_one[:, 0]).sqrt_()
    merged[:, 1:4] = means * unit
    return merged


def merge_rows(rows: Tensor, owner: Tensor, owners: int, more: Sequence[Columns]) -> Tensor:
    """Merge each owner's rows, moments and further columns, into the row of all their values together.

    Args:
        rows: shape (n, WIDTH + width_of(more)), float64; the row of an empty tensor changes nothing.
        owner: shape (n,), int64: the index of the result that each row belongs to.
        owners: how many results there are.
        more: the kinds of columns after the moments, in their order.

    Returns:
        Shape (owners, WIDTH + width_of(more)).
    """
    merged = merge(rows[:, :WIDTH], owner, owners)
    if not more:
        return merged
    parts, start = [merged], WIDTH
    for columns in more:
        numbers = rows[:, start : start + columns.width]
        parts.append(columns.merge(numbers, rows[:, :WIDTH], owner, merged))
        start += columns.width
    return torch.cat(parts, dim=1)
