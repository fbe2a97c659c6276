"""Records: what the TensorBoard tab needs besides scalars, histograms and pictures, and how they are stored.

A record is a tensor of strings: JSON with the version, then packed columns of numbers; see docs/inside.md.
"""

import json
import operator
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

PLUGIN = "hookboard"  # the plugin name of all records

VERSION = 1  # of records that are written; these and older ones can be read

LAYERS = "hookboard/layers"  # a slash and the name of the callback follow in the tag of a `LayersRecord`

HEALTH = "hookboard/health"  # the tag of a `HealthRecord`; of a fit that is resumed, a slash and its first step follow

LOSS = "health/loss"  # the tag of the loss that HealthMonitor has measured, a scalar

MAX_NAME_CHARS = 2000  # of tags; longer ones are not read

MAX_VALUES_BYTES = 1 << 28
"""A `HealthRecord` is read only if its values take at most this many bytes: a damaged one may claim any size."""


@dataclass(frozen=True)
class LayerFacts:
    """What a record holds of one module: its types and shapes.

    Args:
        types: the full names of its class and of its base classes, up to but without `torch.nn.Module`.
        output: the shape of its first output at the first due step; None if it is not known.
        parameters: the shape of each parameter that it owns itself, by dotted name.
        frozen: the names of those that are not trained.
    """

    name: str
    types: tuple[str, ...] = ()
    output: tuple[int, ...] | None = None
    parameters: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    frozen: tuple[str, ...] = ()


@dataclass(frozen=True)
class LayersRecord:
    """A record of the modules that a callback measures, in the order in which they first ran."""

    callback: str
    every_n_steps: int
    layers: tuple[LayerFacts, ...]

    def strings(self) -> list[bytes]:
        """Return the strings to store, which `layers_record` reads: one, the fields as JSON."""
        return [_json(asdict(self))]


@dataclass(frozen=True)
class HealthRecord:
    """A record of what `HealthMonitor` has measured and found in the run so far; each replaces the one before.

    Args:
        headline: how many verdicts there are, in one sentence.
        verdicts: the fields of each `hookboard.Verdict`, worst first.
        values: by quantity, shape (layers, steps), stored as float32; NaN if not measured, infinity if not finite.
        cards: which verdicts are shown as one, by index: `alike`, showing the first, and `effects`, a list per rule.
        shows: the quantity whose chart shows the first verdict best; "" if there is none.
        texts: a paragraph for each card, as it is printed at the end of a fit.
        is_over: True in the last record of a fit.
    """

    every_n_steps: int
    headline: str
    verdicts: tuple[Mapping[str, Any], ...]
    layers: tuple[str, ...]
    steps: tuple[int, ...]
    values: Mapping[str, np.ndarray]
    cards: tuple[Mapping[str, Any], ...] = ()
    shows: str = ""
    texts: tuple[str, ...] = ()
    is_over: bool = False

    def strings(self) -> list[bytes]:
        """Return the strings to store, which `health_record` reads: the fields as JSON, then each quantity's values."""
        return [_json(vars(self) | {"values": list(self.values)}), *map(_packed, self.values.values())]


def layers_record(strings: Sequence[bytes]) -> LayersRecord:
    """Read a `LayersRecord` from its strings; damaged ones, or those of another program, may raise any error."""
    record = _read(strings)
    layers = tuple(
        LayerFacts(
            str(layer["name"]),
            tuple(map(str, layer["types"])),
            None if layer["output"] is None else tuple(map(as_int64, layer["output"])),
            {str(parameter): tuple(map(as_int64, shape)) for parameter, shape in layer["parameters"].items()},
            tuple(map(str, layer.get("frozen", ()))),
        )
        for layer in record["layers"]
    )
    return LayersRecord(str(record["callback"]), as_int64(record["every_n_steps"]), layers)


def health_record(strings: Sequence[bytes], has_values: bool = True) -> HealthRecord:
    """Read a `HealthRecord`, as `layers_record` does; without `has_values` it takes a fraction of the time."""
    record = _read(strings)
    layers, steps = tuple(map(str, record["layers"])), tuple(map(as_int64, record["steps"]))
    if 4 * len(layers) * len(steps) * len(strings) > MAX_VALUES_BYTES:
        raise ValueError(f"its values would take more than {MAX_VALUES_BYTES} bytes")
    columns = (_unpacked(packed, len(layers), len(steps)) for packed in strings[1:])
    values = dict(zip(map(str, record["values"]), columns, strict=True)) if has_values else {}
    verdicts = tuple(dict(verdict) for verdict in record["verdicts"])
    cards, every_n_steps = _cards(record.get("cards"), len(verdicts)), as_int64(record["every_n_steps"])
    headline, shows, is_over = str(record["headline"]), str(record.get("shows", "")), bool(record.get("is_over"))
    texts = tuple(map(str, record.get("texts", ())))
    return HealthRecord(every_n_steps, headline, verdicts, layers, steps, values, cards, shows, texts, is_over)


def as_int64(number: Any) -> int:
    """Convert a value by `int`, whose errors it raises; an OverflowError beyond 64 bits, TensorBoard's limit."""
    return int(np.int64(int(number)))


def _cards(cards: Sequence[Mapping[str, Any]] | None, count: int) -> tuple[Mapping[str, Any], ...]:
    """Read the cards of a record with `count` verdicts; a record without cards gets one for each verdict."""
    if not cards:
        return tuple({"alike": [place], "effects": []} for place in range(count))
    places = [place for card in cards for group in (card["alike"], *card["effects"]) for place in group]
    if sorted(places) != list(range(count)) or not all(card["alike"] for card in cards):
        raise ValueError(f"its cards do not list each of its {count} verdicts exactly once")
    return tuple(cards)


def _json(fields: Mapping[str, Any]) -> bytes:
    # A user's rule may give numbers of NumPy.
    return json.dumps({"version": VERSION, **fields}, default=operator.methodcaller("item")).encode()


def _packed(values: np.ndarray) -> bytes:
    """Compress an array as float32: the first bytes of all numbers, then all second bytes and so on, by zlib."""
    with np.errstate(over="ignore"):  # beyond float32 there is only infinity
        planes = np.ascontiguousarray(values, "<f4").reshape(-1, 1).view(np.uint8).T
    # The numbers of one quantity mostly share the byte with sign and exponent, so planes take a third of the time and
    # 15 % less space. Runs of equal bytes are nearly all that zlib finds in them, so it looks only for those.
    packer = zlib.compressobj(1, strategy=zlib.Z_RLE)
    return packer.compress(planes.tobytes()) + packer.flush()


def _unpacked(packed: bytes, layers: int, steps: int) -> np.ndarray:
    # No more than that: damaged bytes may unpack to any size.
    unpacked = zlib.decompressobj().decompress(packed, 4 * layers * steps + 1)
    planes = np.frombuffer(unpacked, np.uint8).reshape(4, layers * steps)
    return np.ascontiguousarray(planes.T).view("<f4").reshape(layers, steps)


def _read(strings: Sequence[bytes]) -> dict[str, Any]:
    record = dict(json.loads(strings[0]))
    if not isinstance(record["version"], int) or record["version"] > VERSION:
        raise ValueError(
            f"the record has version {record['version']!r}, written by a newer hookboard; "
            f"this one reads up to version {VERSION}"
        )
    return record
