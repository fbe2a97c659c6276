"""What a model gave for a batch, in a file; a run with these tensors forced into it judges each module by itself."""

import functools
import itertools
import json
import math
import os
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from hookboard.base.ranks import local, whole
from hookboard.base.torch_private import modules_in
from hookboard.comparing.distance import BROKEN, Distance, converted, distance, is_extreme
from hookboard.comparing.running import (
    ModelRunner,
    Spot,
    buffers_in,
    gradients_in,
    parameters_in,
    plain_name,
    watched_modules,
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
    """What a module is."""

    type: str
    training: bool
    attributes: Mapping[str, str]  # those that are numbers, texts, or tuples of these, as text


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in the file: the number of its entry, the name of its type, its shape."""

    number: int
    dtype: str
    shape: tuple[int, ...]


@dataclass
class Index:
    """What is known of a recorded call without reading its tensors."""

    modules: dict[str, ModuleFacts] = field(default_factory=dict)
    spots: dict[Spot, StoredTensor] = field(default_factory=dict)  # the tensors of calls, as they were seen
    weights: dict[str, StoredTensor] = field(default_factory=dict)  # parameters and buffers before the call
    after: dict[str, StoredTensor] = field(default_factory=dict)  # buffers after it
    gradients: dict[str, StoredTensor] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)  # a parameter to the first name of the same one
    rounding: dict[Spot | str, float] = field(default_factory=dict)  # what rounding may change, see `rounding_of`
    step: float = 0.0  # the rounding step that these are for


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
    """Open a recording, to read its tensors one at a time; ValueError for a damaged file or one of another version."""
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


def _index_of(record: dict[str, Any]) -> Index:
    if record["version"] != VERSION:
        raise ValueError(f"its format is version {record['version']!r}, but this hookboard reads version {VERSION}")

    def part(name: str, made: Callable[[Any], Any]) -> dict[Any, Any]:
        pairs = record[name].items() if isinstance(record[name], dict) else record[name]
        return {Spot(**key) if isinstance(key, dict) else str(key): made(value) for key, value in pairs}

    entries = {name: part(name, _entry) for name in ("spots", "weights", "after", "gradients")}
    rounding, step = part("rounding", float), float(record["step"])
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
    return all(isinstance(item, PLAIN) for item in (value if isinstance(value, tuple | list) else [value]))


def tied_in(model: nn.Module) -> dict[str, str]:
    """Return the name of each parameter that comes again, with the name under which it comes first."""
    first: dict[int, str] = {}
    named = [(name, first.setdefault(id(weight), name)) for name, weight in parameters_in(model).items()]
    return {name: earlier for name, earlier in named if name != earlier}


NOISE_RUNS = 3
"""How often a model runs with rounding noise, to see how much rounding may change (a choice)."""


@dataclass
class Found:
    """How a run differs from the recorded call."""

    spots: dict[Spot, Distance] = field(default_factory=dict)  # in the order in which they were seen
    shapes: dict[Spot, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    buffers: dict[str, Distance] = field(default_factory=dict)  # after the call, by recorded name
    gradients: dict[str, Distance] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)  # recorded gradients that the run did not give
    added: list[str] = field(default_factory=list)  # weights that got a gradient only in the run

    def distances(self) -> Iterator[tuple[Spot | str, Distance]]:
        """Yield how far all of them are, by spot, or name of a gradient or buffer."""
        yield from self.spots.items()
        yield from self.gradients.items()
        yield from self.buffers.items()


class _Taken(torch.autograd.Function):
    """Gives the values of another tensor, and passes the gradient on to the first."""

    @staticmethod
    def forward(ctx: FunctionCtx, own: Tensor, other: Tensor) -> Tensor:
        return other.clone()

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def beside(
    runner: ModelRunner,
    recorded: Recorded,
    names: Mapping[str, str],
    *,
    is_fault: Callable[[Spot, Distance], bool] = lambda spot, found: False,
    noise: Callable[[Tensor], Tensor] | None = None,
) -> Found:
    """Run a model beside a recorded call, and measure how far each tensor is from the recorded one."""
    # Recorded tensors take the place of outputs, of their gradients, and of inputs at fault, so that a fault does not
    # spread. `noise` changes the recorded tensors, and the model's inputs.
    found, model = Found(), runner.model

    def see(spot: Spot, tensor: Tensor) -> Tensor | None:
        if spot.module not in names:
            return None
        at = replace(spot, module=names[spot.module])
        entry = recorded.index.spots.get(at)
        if entry is None or at in found.spots:
            return None
        wanted = recorded.tensor(entry).to(tensor.device)
        if wanted.shape != tensor.shape:
            found.shapes[at] = tuple(wanted.shape), tuple(tensor.shape)
            found.spots[at] = BROKEN
            return None
        found.spots[at] = distance(wanted, tensor)
        is_given = spot.part == "input"
        if noise is not None and (not is_given or not spot.module):
            wanted = noise(wanted)
        elif is_given and not is_fault(at, found.spots[at]):
            return None
        wanted = converted(wanted, tensor.dtype)
        if is_given and noise is None and _can_be_filled(tensor):
            # The code around the module has this very tensor too, as the sum of a residual connection.
            tensor.data.copy_(wanted)
            return None
        passed_on: Tensor = _Taken.apply(tensor, wanted) if tensor.requires_grad else wanted
        return passed_on

    def at_end() -> None:
        for part, there, own in (
            (found.buffers, recorded.index.after, buffers_in(model)),
            (found.gradients, recorded.index.gradients, gradients_in(model)),
        ):
            for name, tensor in own.items():
                entry = there.get(renamed(name, names))
                if entry is not None and tensor is not None and entry.shape == tuple(tensor.shape):
                    part[renamed(name, names)] = distance(recorded.tensor(entry), tensor)
        has_gradient = {renamed(name, names): tensor is not None for name, tensor in gradients_in(model).items()}
        wanted = recorded.index.gradients
        found.missing = [name for name in wanted if not has_gradient.get(name, True)]
        known = recorded.index.weights
        found.added = [
            name for name, has in has_gradient.items() if has and wanted and name in known and name not in wanted
        ]

    with nullcontext() if noise is None else _noise_in_saved(model, noise):
        runner(see, at_end)
    return found


def _noise_in_saved(model: nn.Module, noise: Callable[[Tensor], Tensor]) -> AbstractContextManager[object]:
    """Return a context that adds noise to all that operations save for the backward pass, except weights."""
    # A gradient may be a small difference of large numbers that one operation saves, as in attention.
    weights = {weight.untyped_storage().data_ptr() for weight in map(local, model.parameters())}

    def pack(tensor: Tensor) -> Tensor:
        is_plain = tensor.layout is torch.strided and type(tensor) in (Tensor, nn.Parameter)
        if not is_plain or tensor.untyped_storage().data_ptr() in weights:
            return tensor
        return noise(tensor.detach())

    return torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed)


def _can_be_filled(tensor: Tensor) -> bool:
    """Return True if each element has memory of its own."""
    return all(size == 1 or stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def renamed(name: str, names: Mapping[str, str]) -> str:
    """Return the recorded name of a parameter or buffer, by the name of the module that has it.

    >>> renamed("body.0.weight", {"body.0": "net.first"})
    'net.first.weight'
    """
    module, _, own = name.rpartition(".")
    twin = names.get(module)
    return name if twin is None else f"{twin}.{own}".lstrip(".")


def rounding_of(
    runner: ModelRunner, recorded: Recorded, step: float, dtypes: Mapping[str, torch.dtype]
) -> dict[Spot | str, float]:
    """Return how much rounding may change each tensor, relative to its norm: by spot, or name of gradient or buffer."""
    names = {name: name for name in watched_modules(runner.model)}
    own = {name: weight.dtype for name, weight in weights_in(runner.model).items() if weight.is_floating_point()}
    others = {name: dtypes[name] for name in own if dtypes.get(name, own[name]) != own[name]}
    largest: dict[Spot | str, float] = defaultdict(float)
    # With noise of one rounding step (the distance of 1 to the next number) on inputs and on what each module returns.
    for seed in range(NOISE_RUNS):
        for key, seen in beside(runner, recorded, names, noise=rounding_noise(step, seed)).distances():
            largest[key] = max(largest[key], seen.relative)
    if others:  # with its weights in the other types, which holds what a kernel rounds within
        try:
            found = beside(replace(runner, dtypes=others), recorded, names)
        except Exception:  # its code may know one type only; the noise is measured in any case
            return largest
        for key, seen in found.distances():
            # Numbers too large for these types are a difference.
            if key in found.shapes or math.isfinite(seen.relative) or math.isfinite(seen.right):
                largest[key] = max(largest[key], seen.relative)
    return largest


def rounding_noise(step: float, seed: int) -> Callable[[Tensor], Tensor]:
    """Return a function that changes floating numbers by a rounding step, up or down at random."""
    generator = torch.Generator("cpu").manual_seed(seed)

    def noisy(tensor: Tensor) -> Tensor:
        if tensor.is_complex():
            return torch.view_as_complex(noisy(torch.view_as_real(tensor.resolve_conj())))
        if not tensor.is_floating_point():
            return tensor
        up = torch.rand(tensor.shape, generator=generator, dtype=torch.float32, device="cpu") < 0.5
        factor = 1 + step * (2 * up.to(tensor.device, torch.float64) - 1)
        return torch.where(is_extreme(tensor), tensor, (tensor.to(torch.float64) * factor).to(tensor.dtype))

    return noisy
