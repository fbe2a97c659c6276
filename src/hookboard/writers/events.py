"""The bytes of TensorBoard's events, as protobuf would make them, without a message for each value."""

import functools
import struct
from collections.abc import Sequence

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event

from hookboard.measure import Histogram, Moments

# The numbers of fields are those of event.proto and summary.proto of TensorBoard, the form of the bytes is that of
# https://protobuf.dev/programming-guides/encoding.
_SUMMARY_OF_EVENT = 5
_VALUE, _TAG, _HISTOGRAM = 1, 1, 5
_SIMPLE_VALUE = b"\x15\0\0\0\0"  # field 2, four bytes
_LIMITS, _COUNTS = 6, 7
_MOMENTS = struct.Struct("<BdBdBdBdBd")  # fields 1 to 5 of a histogram, eight bytes each


class ScalarTags:
    """The tags of some scalars, and the bytes that a summary of them always has.

    Args:
        tags: no two alike.
    """

    def __init__(self, tags: Sequence[str]) -> None:
        self.tags = tags

    def summary(self, values: np.ndarray) -> bytes:
        """The fields of a summary that has these scalars.

        Args:
            values: in the order of the tags, shape (tags,), float64. They are rounded to float32; what is beyond its
                range becomes infinite.
        """
        body, places = self._empty
        body = body.copy()
        with np.errstate(over="ignore"):
            body[places] = values.astype("<f4").view(np.uint8).reshape(-1, 4)
        summary: bytes = body.tobytes()
        return summary

    @functools.cached_property
    def _empty(self) -> tuple[np.ndarray, np.ndarray]:
        """The bytes with 0 for each value, and the four places of each value, shape (tags, 4)."""
        parts = [_field(_VALUE, _field(_TAG, tag.encode()) + _SIMPLE_VALUE) for tag in self.tags]
        ends = np.cumsum([len(part) for part in parts], dtype=np.intp)
        return np.frombuffer(b"".join(parts), dtype=np.uint8), ends[:, None] + np.arange(-4, 0)


@functools.lru_cache(maxsize=64)
def scalar_tags(*tags: str) -> ScalarTags:
    """Those of a few scalars, which are the same at most steps."""
    return ScalarTags(tags)


def histogram_of(tag: str, moments: Moments, histogram: Histogram) -> bytes:
    """The field of a summary that has this histogram."""
    m = moments
    numbers = _MOMENTS.pack(0x09, m.min, 0x11, m.max, 0x19, m.count, 0x21, m.count * m.mean, 0x29, m.square_sum)
    limits, counts = histogram.edges[1:].astype("<f8").tobytes(), histogram.counts.astype("<f8").tobytes()
    body = numbers + _field(_LIMITS, limits) + _field(_COUNTS, counts)
    return _field(_VALUE, _field(_TAG, tag.encode()) + _field(_HISTOGRAM, body))


def event_of(summary: bytes, step: int, wall_time: float) -> bytes:
    """The event with this summary.

    Args:
        summary: its fields.
        step: on the logger's axis.
        wall_time: in seconds since 1970.
    """
    head: bytes = Event(wall_time=wall_time, step=step).SerializeToString()
    return head + _field(_SUMMARY_OF_EVENT, summary)


def _field(number: int, content: bytes) -> bytes:
    """A field of bytes: its number, below 16, their count, and the bytes."""
    head, left = [number << 3 | 2], len(content)
    while left > 127:
        head.append(left & 127 | 128)
        left >>= 7
    return bytes([*head, left]) + content
