"""What stands before and behind a packet: tensors as they are measured, rows as they are read."""

import math
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from hookboard.measure import ChannelRows
from hookboard.recording.exchange import Layout, Packet
from hookboard.sites import Site


def as_taken(taken: Mapping[int, ChannelRows | None], layout: Layout) -> Iterator[np.ndarray | None]:
    """The rows of the channels of each site, where they need no packet."""
    for index in range(len(layout)):
        rows = taken.get(index)
        yield None if rows is None else np.asarray(rows)


def channels_in(packet: Packet, layout: Layout) -> Iterator[np.ndarray | None]:
    """The rows of the channels of each site; None of those that do not have all of them."""
    rows, start = packet.channels.numpy(), 0
    for extent in layout.values():
        own = rows[start : start + extent.channels]
        start += extent.channels
        # A reading that is kept does not keep the packet.
        yield own.copy() if extent.channels and not math.isnan(own[0, 0]) else None


def bins_in(packet: Packet, layout: Layout) -> Iterator[np.ndarray | None]:
    """The counts of each site; None of those that do not have all of them."""
    counted = iter(packet.bins.numpy())
    for extent in layout.values():
        bins = next(counted) if extent.has_bins else None
        yield None if bins is None or math.isnan(bins[0]) else bins


def dtypes_in(layout: Layout, mine: Layout) -> list[torch.dtype | None]:
    """The dtype of each site in a layout of all ranks, of this rank's own tensors where it has any."""
    if layout is mine:
        return [extent.dtype for extent in layout.values()]
    return [mine.get(site, extent).dtype or extent.dtype for site, extent in layout.items()]


def unscaled(gradient: Tensor, scale: Tensor) -> Tensor:
    """A gradient without the scale, in float32 at least: half precision, which needs the scale, would lose it."""
    return gradient.to(torch.promote_types(gradient.dtype, torch.float32)) / scale


def difference(tensor: Tensor, minus: Tensor) -> Tensor:
    """In float32 at least: two neighbouring half-precision weights differ by less than their type resolves."""
    wide = torch.promote_types(tensor.dtype, torch.float32)
    return tensor.to(wide) - minus.to(wide)


def in_order(rows: Tensor, given: list[Site], wanted: list[Site]) -> Tensor:
    """The rows of the given sites, and behind them the empty one, as those of the wanted sites."""
    if given == wanted:
        return rows[:-1]
    place = {site: index for index, site in enumerate(given)}
    order = torch.tensor([place.get(site, len(given)) for site in wanted], dtype=torch.long, device=rows.device)
    return rows[order]
