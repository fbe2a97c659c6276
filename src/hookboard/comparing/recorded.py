"""What a model gave for a batch, in a file: the tensors of every call of a module, its weights, and what it is."""

import functools
import itertools
import json
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hookboard.base.ranks import whole
from hookboard.base.torch_private import modules_in
from hookboard.comparing.running import (
    ModelRunner,
    Spot,
    buffers_in,
    gradients_in,
    parameters_in,
    plain_name,
    weights_in,
)

VERSION = 1
"""The version of the format. A file of another one is refused."""

INDEX = "index.json"
"""The name of the entry that tells what is in the others."""

PLAIN = (bool, int, float, str, type(None), torch.dtype)
"""Types of attributes that are kept, and tuples of these."""


@dataclass(frozen=True)
class ModuleFacts:
    """What a module is.

    Args:
        attributes: its attributes that are numbers, texts, or tuples of these, as text.
    """

    type: str
    training: bool
    attributes: Mapping[str, str]


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in the file: the number of its entry, the name of its type, its shape."""

    number: int
    dtype: str
    shape: tuple[int, ...]


@dataclass
class Index:
    """What is known of a recorded call without reading its tensors.

    Args:
        spots: the tensors of calls, in the order in which they were seen.
        weights: parameters and buffers before the call, by name.
        after: buffers after it, by name.
        tied: name of a parameter to the name of the same one that comes first.
        rounding: what rounding alone may change, see `rounding_of`: by spot or name of a gradient.
        step: the rounding step that these are for.
    """

    modules: dict[str, ModuleFacts] = field(default_factory=dict)
    spots: dict[Spot, StoredTensor] = field(default_factory=dict)
    weights: dict[str, StoredTensor] = field(default_factory=dict)
    after: dict[str, StoredTensor] = field(default_factory=dict)
    gradients: dict[str, StoredTensor] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)
    rounding: dict[Spot | str, float] = field(default_factory=dict)
    step: float = 0.0


@dataclass(frozen=True)
class Recorded:
    """A recorded call: what is in it, and what reads one of its tensors."""

    index: Index
    tensor: Callable[[StoredTensor], Tensor]

    @property
    def dtypes(self) -> set[torch.dtype]:
        """The floating types of its tensors."""
        entries = itertools.chain(self.index.spots.values(), self.index.weights.values())
        return {dtype for entry in entries if (dtype := getattr(torch, entry.dtype)).is_floating_point}


@contextmanager
def opened(path: str | os.PathLike[str], index: Index | None = None) -> Iterator[Recorded]:
    """Open a recording, whose tensors are read one at a time; without an index it is read from the file.

    Raises:
        OSError: there is no such file.
        ValueError: it is damaged, no recording, or of another version.
    """
    try:
        file = zipfile.ZipFile(path)
        index = _index_of(json.loads(file.read(INDEX))) if index is None else index
    except (zipfile.BadZipFile, LookupError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{os.fspath(path)} is not a hookboard recording, or is damaged: {error!r}") from error
    with file:
        yield Recorded(index, functools.partial(_read, file))


def _read(file: zipfile.ZipFile, entry: StoredTensor) -> Tensor:
    content, dtype = bytearray(file.read(str(entry.number))), getattr(torch, entry.dtype)
    flat = torch.frombuffer(content, dtype=dtype) if content else torch.empty(0, dtype=dtype, device="cpu")
    return flat.reshape(entry.shape)


def write(model: nn.Module, runner: ModelRunner, path: str | os.PathLike[str]) -> Index:
    """Run a model once and write its tensors to a file, without the index, which is returned."""
    index, numbers = Index(modules=facts_of(model), tied=tied_in(model)), itertools.count()
    with zipfile.ZipFile(path, "w") as file:

        def put(tensor: Tensor) -> StoredTensor | None:
            tensor = whole(tensor.detach())
            if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized or tensor.is_meta:
                return None
            dtype = str(tensor.dtype).removeprefix("torch.")
            entry = StoredTensor(next(numbers), dtype, tuple(tensor.shape))
            flat = tensor.cpu().contiguous().reshape(-1)
            with file.open(zipfile.ZipInfo(str(entry.number)), "w", force_zip64=True) as content:
                content.write(flat.view(torch.uint8).numpy().data)
            return entry

        def put_all(into: dict[str, StoredTensor], tensors: Mapping[str, Tensor | None]) -> None:
            for name, tensor in tensors.items():
                if tensor is not None and (entry := put(tensor)) is not None:
                    into[name] = entry

        def see(spot: Spot, tensor: Tensor) -> None:
            if (entry := put(tensor)) is not None:
                index.spots[spot] = entry

        def at_end() -> None:
            put_all(index.after, buffers_in(model))
            put_all(index.gradients, gradients_in(model))

        put_all(index.weights, weights_in(model))
        runner(see, at_end)
    return index


def add_index(path: str | os.PathLike[str], index: Index) -> None:
    """Write the index of a file that `write` has written."""
    fields = {name: _packed(part) for name, part in vars(index).items()}
    with zipfile.ZipFile(path, "a") as file:
        file.writestr(INDEX, json.dumps({"version": VERSION, **fields}), zipfile.ZIP_DEFLATED)


def _packed(part: Any) -> Any:
    """Return a part of an index for JSON, in which spots cannot be keys: these become pairs in a list."""
    if not isinstance(part, dict):
        return asdict(part) if isinstance(part, ModuleFacts | StoredTensor | Spot) else part
    pairs = [[_packed(key), _packed(value)] for key, value in part.items()]
    return pairs if any(isinstance(key, Spot) for key in part) else dict(pairs)


def _index_of(given: dict[str, Any]) -> Index:
    if given["version"] != VERSION:
        raise ValueError(f"its format is version {given['version']!r}, but this hookboard reads version {VERSION}")

    def part(name: str, made: Callable[[Any], Any]) -> dict[Any, Any]:
        pairs = given[name].items() if isinstance(given[name], dict) else given[name]
        return {Spot(**key) if isinstance(key, dict) else str(key): made(value) for key, value in pairs}

    entries = {name: part(name, _entry) for name in ("spots", "weights", "after", "gradients")}
    rounding, step = part("rounding", float), float(given["step"])
    return Index(
        modules=part("modules", lambda fields: ModuleFacts(**fields)),
        tied=part("tied", str),
        rounding=rounding,
        step=step,
        **entries,
    )


def _entry(fields: dict[str, Any]) -> StoredTensor:
    return StoredTensor(fields["number"], fields["dtype"], tuple(fields["shape"]))


def facts_of(model: nn.Module) -> dict[str, ModuleFacts]:
    """Return the facts of the model and of each module in it, by name."""
    found = {}
    for name, module in modules_in(model).items():
        kept = {key: value for key, value in vars(module).items() if not key.startswith("_") and key != "training"}
        plain = {key: str(value) for key, value in kept.items() if _is_plain(value)}
        found[plain_name(model, name)] = ModuleFacts(type(module).__name__, module.training, plain)
    return found


def _is_plain(value: object) -> bool:
    return all(isinstance(one, PLAIN) for one in (value if isinstance(value, tuple | list) else [value]))


def tied_in(model: nn.Module) -> dict[str, str]:
    """Return the name of each parameter that comes again, with the name under which it comes first."""
    first: dict[int, str] = {}
    named = [(name, first.setdefault(id(one), name)) for name, one in parameters_in(model).items()]
    return {name: earlier for name, earlier in named if name != earlier}
