"""Which channels of a tensor get a row: all of them, or every k-th of a wide tensor, so that rows stay bounded."""

from torch import Tensor

from hookboard.measure.row import WIDTH

MOST_ROW_BYTES = 320 << 10
"""What the rows of the channels of one site may take on the host, in packets and over ranks."""

MOST_CHANNELS = MOST_ROW_BYTES // (8 * WIDTH)
"""So many channels get a row each: 4096. Of more, such as logits over a vocabulary, every k-th does."""


def every_of(channels: int) -> int:
    """Return the k of a tensor with so many channels: channel 0, k, 2 * k ... get a row. 1 if all do.

    It depends on nothing else, so that all calls, steps, ranks and roles take the same channels. What repeats in a
    layer with the period k, or a part of it, shows in a sample as all or nothing.

    >>> every_of(4096), every_of(4097), every_of(14_336)
    (1, 2, 4)
    """
    return max(1, -(-channels // MOST_CHANNELS))


def looked_at(channels: int) -> int:
    """How many of so many channels get a row.

    >>> looked_at(4096), looked_at(14_336), looked_at(1_000_003)
    (4096, 3584, 4082)
    """
    return -(-channels // every_of(channels))


def sample_of(tensor: Tensor, dim: int) -> Tensor:
    """Return a view of the channels of a tensor that get a row.

    Args:
        tensor: the tensor.
        dim: the dimension of the channels, not negative.
    """
    return tensor[(slice(None),) * dim + (slice(None, None, every_of(tensor.shape[dim])),)]
