"""The record: what the tab in TensorBoard needs and no tag can say, and how it is stored in an event file.

A record is a tensor of strings under the plugin name `hookboard`; docs/record.md describes it for readers of other
making. Its first string is JSON and has the version; the others are columns of numbers.
"""

import json
import math
import operator
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

PLUGIN = "hookboard"
"""The plugin name of all records."""

VERSION = 1
"""A reader takes this version and older ones."""

LAYERS = "hookboard/layers"
"""The tag of a `LayersRecord` is this, a slash and the name of the callback."""

HEALTH = "hookboard/health"
"""The tag of a `HealthRecord`."""

MOST_DIMENSIONS = 64
"""Of a tensor of torch's."""

LONGEST_NAME = 2000
"""How many characters a name of a layer, or a tag, may have to be read."""

MOST_ROOM, LEAST_ROOM = 64, 64 << 20
"""A `HealthRecord` is read if its values take so many times what is stored of it, or so many bytes."""


_NOT_OURS = (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError, zlib.error)
"""What the reading of fields that somebody else has written, or that were spoiled, may raise."""


@dataclass(frozen=True)
class LayerFacts:
    """What is known of a module beside its numbers.

    Args:
        name: its dotted name.
        types: the full names of its class and of the classes above it, below `torch.nn.Module`.
        output: the shape of its first output at the first due step; None if it is not known.
        parameters: the shape of each parameter that it owns itself, by dotted name.
    """

    name: str
    types: tuple[str, ...] = ()
    output: tuple[int, ...] | None = None
    parameters: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class LayersRecord:
    """The modules that a callback watches.

    Args:
        callback: the name of its class.
        every_n_steps: how many optimizer steps lie between two due steps.
        layers: in the order in which they ran first.
    """

    callback: str
    every_n_steps: int
    layers: tuple[LayerFacts, ...]

    def strings(self) -> list[bytes]:
        """Return the record as the strings of a tensor."""
        return [_json(asdict(self))]


@dataclass(frozen=True)
class HealthRecord:
    """What `HealthMonitor` has seen of the run so far; the last version has all of it.

    Args:
        every_n_steps: how many optimizer steps lie between two looks.
        headline: how many verdicts there are, in one sentence.
        verdicts: worst first: the fields of `hookboard.Verdict`.
        layers: the names of the layers, in the order in which they run.
        steps: the optimizer steps of the columns.
        values: quantity to one number for each layer and step, shape (layers, steps), stored as float32. NaN where
            nothing was measured, infinity where what was measured was not finite.
        cards: which verdicts are shown as one, as places in `verdicts`: each has `alike`, of which the first is shown,
            and `effects`, what follows from these, in lists by rule. Every verdict is on one card.
        shows: the quantity in which the first verdict can be seen; "" if in none.
    """

    every_n_steps: int
    headline: str
    verdicts: tuple[Mapping[str, Any], ...]
    layers: tuple[str, ...]
    steps: tuple[int, ...]
    values: Mapping[str, np.ndarray]
    cards: tuple[Mapping[str, Any], ...] = ()
    shows: str = ""

    def strings(self) -> list[bytes]:
        """Return the record as the strings of a tensor: JSON, then the values of each quantity, packed."""
        return [_json(vars(self) | {"values": list(self.values)}), *map(_packed, self.values.values())]


def layers_record(strings: Sequence[bytes]) -> LayersRecord:
    """Read a `LayersRecord`.

    Raises:
        ValueError: it is none, or of a later version.
    """
    given = _read(strings)
    try:
        layers = tuple(
            LayerFacts(
                name,
                tuple(map(str, layer["types"])),
                None if layer["output"] is None else _shape(layer["output"]),
                {str(parameter): _shape(shape) for parameter, shape in layer["parameters"].items()},
            )
            for name, layer in zip(_names(one["name"] for one in given["layers"]), given["layers"], strict=True)
        )
        return LayersRecord(str(given["callback"]), whole(given["every_n_steps"]), layers)
    except _NOT_OURS as error:
        raise ValueError(f"no record of layers: {error!r}") from error


def health_record(strings: Sequence[bytes]) -> HealthRecord:
    """Read a `HealthRecord`.

    Raises:
        ValueError: it is none, or of a later version.
    """
    given = _read(strings)
    try:
        layers, steps = _names(given["layers"]), tuple(map(whole, given["steps"]))
        claimed, stored = 4 * len(layers) * len(steps) * (len(strings) - 1), sum(map(len, strings))
        if claimed > max(LEAST_ROOM, MOST_ROOM * stored):
            raise ValueError(f"its values would take {claimed} bytes, and it has only {stored}")
        columns = (_unpacked(packed, len(layers), len(steps)) for packed in strings[1:])
        values = dict(zip(map(str, given["values"]), columns, strict=True))
        verdicts = tuple(dict(verdict) for verdict in given["verdicts"])
        cards = _cards(given.get("cards"), len(verdicts))
        every_n_steps, headline = whole(given["every_n_steps"]), str(given["headline"])
        shows = str(given.get("shows", ""))
        return HealthRecord(every_n_steps, headline, verdicts, layers, steps, values, cards, shows)
    except _NOT_OURS as error:
        raise ValueError(f"no record of health: {error!r}") from error


def whole(given: Any) -> int:
    """Return a whole number of 64 bits, as the steps of TensorBoard are.

    Raises:
        ValueError, TypeError, OverflowError: it is none.
    """
    return int(np.int64(int(given)))


def _cards(given: Iterable[Mapping[str, Any]] | None, count: int) -> tuple[Mapping[str, Any], ...]:
    """Return the cards of so many verdicts; where there are none, as in older records, each verdict is one."""
    if not given:
        return tuple({"alike": [place], "effects": []} for place in range(count))
    groups = [[list(map(whole, group)) for group in (card["alike"], *card["effects"])] for card in given]
    places = [place for card in groups for group in card for place in group]
    if sorted(places) != list(range(count)) or not all(alike for alike, *_ in groups):
        raise ValueError(f"its cards do not hold each of its {count} verdicts once")
    return tuple({"alike": alike, "effects": effects} for alike, *effects in groups)


def _shape(given: Iterable[Any]) -> tuple[int, ...]:
    shape = tuple(map(whole, given))
    if min(shape, default=0) < 0 or math.prod(shape[:MOST_DIMENSIONS]) >= 2**63 or len(shape) > MOST_DIMENSIONS:
        raise ValueError(f"no tensor has the shape {list(shape[:8])}{'...' if len(shape) > 8 else ''}")
    return shape


def _names(given: Iterable[Any]) -> tuple[str, ...]:
    names = tuple(map(str, given))
    for name in names:
        if len(name) > LONGEST_NAME:
            raise ValueError(f"the name {name[:40] + '...'!r} has {len(name)} characters, more than {LONGEST_NAME}")
    if len(set(names)) < len(names):
        raise ValueError("it names a layer twice")
    return names


def _json(fields: Mapping[str, Any]) -> bytes:
    # A number of NumPy's, as a rule of the user's may give, is written as Python's.
    return json.dumps({"version": VERSION, **fields}, default=operator.methodcaller("item")).encode()


def _packed(values: np.ndarray) -> bytes:
    """Little-endian float32, the first bytes of all numbers, then all second ones and so on, by zlib.

    Numbers of one quantity are alike in their last byte, sign and exponent: so they take a third of the time to pack,
    and 15 % less room. Runs of equal bytes are nearly all that zlib finds in them, and all that it has to look for.
    """
    with np.errstate(over="ignore"):  # beyond float32 there is only infinity
        planes = np.ascontiguousarray(values, "<f4").reshape(-1, 1).view(np.uint8).T
    packer = zlib.compressobj(1, strategy=zlib.Z_RLE)
    return packer.compress(planes.tobytes()) + packer.flush()


def _unpacked(packed: bytes, layers: int, steps: int) -> np.ndarray:
    size = 4 * layers * steps
    unpacker = zlib.decompressobj()
    # No more than that: what was spoiled may unpack to any size.
    planes = np.frombuffer(unpacker.decompress(packed, size + 1), np.uint8).reshape(4, layers * steps)
    if not unpacker.eof:
        raise ValueError("a column is cut")
    return np.ascontiguousarray(planes.T).view("<f4").reshape(layers, steps)


def _read(strings: Sequence[bytes]) -> dict[str, Any]:
    try:
        given = json.loads(strings[0])
        version = given["version"]
    except _NOT_OURS as error:
        raise ValueError(f"no record of hookboard: {error!r}") from error
    if not isinstance(version, int) or version > VERSION:
        raise ValueError(
            f"the record has version {version!r}; this hookboard reads up to {VERSION}: a newer one wrote it"
        )
    return dict(given)
