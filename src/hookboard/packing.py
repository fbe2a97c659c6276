"""Packs objects of hookboard into one tensor of bytes, and unpacks them: a checkpoint can hold it without pickle.

The bytes are NumPy's `npz` without pickle: all arrays of each type, one after the other, and a JSON text that refers
to them. Each part has a checksum, so that damage is noticed. Unpacking can only make objects of the given classes.
"""

import dataclasses
import io
import json
import math
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

_AS_THEY_ARE = {type(None), bool, int, float, str}
"""The types that JSON represents itself."""


class Codec(NamedTuple):
    """How objects of one class are taken apart and made again.

    Args:
        take: returns an object's parts by name.
        make: makes an object from its parts.
    """

    take: Callable[[Any], Mapping[str, Any]]
    make: Callable[[dict[str, Any]], Any]


Codecs = Mapping[type, Codec]
"""The classes whose objects may be packed."""


def dataclass_codec(cls: type) -> Codec:
    """Return the codec of a dataclass, whose objects are packed as their fields."""
    names = [field.name for field in dataclasses.fields(cls)]
    return Codec(lambda made: {name: getattr(made, name) for name in names}, lambda parts: cls(**parts))


def object_codec(empty: Callable[[], Any], derived: Iterable[str] = ()) -> Codec:
    """Return the codec of a class whose objects are packed as their attributes, or as what `__getstate__` returns.

    Args:
        empty: makes an object with all attributes.
        derived: attributes that follow from the others and are left out.
    """
    derived = frozenset(derived)

    def take(given: Any) -> dict[str, Any]:
        parts = given.__getstate__() if "__getstate__" in vars(type(given)) else vars(given)
        return {name: part for name, part in parts.items() if name not in derived}

    def make(parts: dict[str, Any]) -> Any:
        made = empty()
        if parts.keys() != vars(made).keys() - derived:
            raise ValueError(f"a {type(made).__name__} has other parts: {', '.join(parts)}")
        if "__setstate__" in vars(type(made)):
            made.__setstate__(parts)
        else:
            vars(made).update(parts)
        return made

    return Codec(take, make)


class Packed(NamedTuple):
    """A packed value: everything is copied except the tensors, for which the host may still have to wait.

    Args:
        text: the JSON text, compressed, shape (n,), uint8.
        arrays: the name of a dtype to the elements of all arrays of that dtype, one array after the other.
        tensors: the tensors, on any device.
    """

    text: np.ndarray
    arrays: dict[str, np.ndarray]
    tensors: Sequence[Tensor]

    def written(self) -> Tensor:
        """Return text, arrays and tensors as the bytes of an `npz` file, shape (n,), uint8; wait for the devices."""
        buffer, numbered = io.BytesIO(), enumerate(self.tensors)
        parts: dict[str, Any] = self.arrays | {f"tensor {i}": tensor.cpu().numpy() for i, tensor in numbered}
        np.savez(buffer, text=self.text, **parts)
        return torch.frombuffer(buffer.getbuffer(), dtype=torch.uint8)


def packed(value: Any, forms: Codecs) -> Packed:
    """Pack a value without waiting for a device.

    Args:
        value: made of None, numbers (those of NumPy are unpacked as Python's), strings, lists, tuples, sets, mappings
            (unpacked as dicts), deques, arrays, tensors (unpacked as arrays), and objects of the classes in `forms`. An
            object of these classes that occurs twice is packed once.
        forms: how to pack the objects of each class.

    Raises:
        TypeError: the value contains something else.

    Examples:
        >>> unpacked(packed({"a": (1, {2.5}), "b": np.zeros(2)}, {}).written(), {})
        {'a': (1, {2.5}), 'b': array([0., 0.])}
    """
    packer = _Packer(forms)
    text = zlib.compress(json.dumps(packer.tree(value)).encode(), 1)
    # One type after the other, so that the parts of one alone lie in memory twice.
    arrays = {name: np.concatenate(packer.arrays.pop(name)) for name in list(packer.arrays)}
    return Packed(np.frombuffer(text, np.uint8), arrays, packer.tensors)


def unpacked(given: Tensor, forms: Codecs) -> Any:
    """Unpack a value from bytes.

    Raises:
        ValueError: the bytes are damaged, or hold a class that is not in `forms`.
    """
    try:
        with np.load(io.BytesIO(given.cpu().numpy().tobytes()), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        tree = json.loads(zlib.decompress(arrays.pop("text").tobytes()))
        return _Maker(forms, arrays).value(tree)
    except Exception as error:  # zipfile, zlib, NumPy, JSON and our own classes raise whatever they come upon
        raise ValueError(f"{type(error).__name__}: {error}") from error


class _Packer:
    """Turns a value into a tree for JSON; what JSON lacks becomes an object whose single key names its type."""

    def __init__(self, forms: Codecs) -> None:
        self.arrays: dict[str, list[np.ndarray]] = {}
        """The name of a dtype to all arrays of that dtype, flattened."""
        self.tensors: list[Tensor] = []
        self._sizes: dict[str, int] = {}
        self._forms = forms
        self._seen: dict[int, int] = {}
        self._held: list[Any] = []  # an id is that of an object as long as it lives

    def tree(self, value: Any) -> Any:
        if type(value) in _AS_THEY_ARE:
            return value
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, np.ndarray):
            if value.dtype == np.float64 and value.ndim == 2 and len(value):
                return {"columns": [self._array(part) for part in _narrow(value)]}
            return {"array": self._array(value)}
        if isinstance(value, Tensor):
            self.tensors.append(value.detach())
            return {"tensor": len(self.tensors) - 1}
        if type(value) in self._forms:
            return self._object(value)
        if isinstance(value, Mapping):
            return {"mapping": [[self.tree(key), self.tree(each)] for key, each in value.items()]}
        if isinstance(value, deque):
            return {"deque": [value.maxlen, [self.tree(each) for each in value]]}
        for cls, word in ((list, None), (tuple, "tuple"), (frozenset, "frozenset"), (set, "set")):
            if isinstance(value, cls):
                is_plain = all(type(each) in _AS_THEY_ARE for each in value)
                several = list(value) if is_plain else [self.tree(each) for each in value]
                return several if word is None else {word: several}
        raise TypeError(f"a {type(value).__name__} cannot be packed")

    def _array(self, array: np.ndarray) -> Any:
        """Store an array, and return its dtype, its offset among all arrays of that dtype, and its shape."""
        name = str(array.dtype)
        at = self._sizes.get(name, 0)
        self._sizes[name] = at + array.size
        self.arrays.setdefault(name, []).append(array.reshape(-1))
        return [name, at, array.shape]

    def _object(self, value: Any) -> Any:
        if id(value) in self._seen:
            return {"same": self._seen[id(value)]}
        parts = {name: self.tree(part) for name, part in self._forms[type(value)].take(value).items()}
        self._seen[id(value)] = len(self._held)
        self._held.append(value)
        return {"is": type(value).__name__, "of": parts}


class _Maker:
    """Turns a tree that `_Packer` made back into the value."""

    def __init__(self, forms: Codecs, arrays: Mapping[str, np.ndarray]) -> None:
        self._make = {cls.__name__: form.make for cls, form in forms.items()}
        self._arrays = arrays
        self._made: list[Any] = []

    def _array(self, name: str, at: int, shape: list[int]) -> np.ndarray:
        # What is kept of one array does not keep all others.
        return np.array(self._arrays[name][at : at + math.prod(shape)].reshape(shape))

    def value(self, tree: Any) -> Any:
        if isinstance(tree, list):
            return [self.value(each) for each in tree]
        if not isinstance(tree, dict):
            return tree
        if "is" in tree:
            made = self._make[tree["is"]]({name: self.value(part) for name, part in tree["of"].items()})
            self._made.append(made)
            return made
        ((word, given),) = tree.items()
        if word == "same":
            return self._made[given]
        if word == "array":
            return self._array(*given)
        if word == "tensor":
            return self._arrays[f"tensor {given}"]
        if word == "columns":
            return _wide(*(self._array(*each) for each in given))
        if word == "mapping":
            return {self.value(key): self.value(each) for key, each in given}
        if word == "deque":
            return deque(map(self.value, given[1]), maxlen=given[0])
        return {"tuple": tuple, "frozenset": frozenset, "set": set}[word](map(self.value, given))


def _narrow(block: np.ndarray) -> tuple[np.ndarray, ...]:
    """Take a block apart so that constant columns are stored once, and those that fit float32 in half the space.

    Args:
        block: shape (rows, columns), float64, with at least one row.

    Returns:
        The first row; whether each column is constant; whether it fits float32 (False for constant ones); the columns
        that do, as float32; the remaining columns, which are neither.
    """
    block = np.ascontiguousarray(block)
    bits = block.view(np.int64)  # -0.0 is not 0.0, and one NaN is as good as another
    is_constant = (bits == bits[:1]).all(axis=0) | np.isnan(block).all(axis=0)
    with np.errstate(over="ignore", invalid="ignore"):
        short = block.astype(np.float32)
    is_short = ((short == block) | np.isnan(block)).all(axis=0) & ~is_constant
    first = block[0].copy()  # a view would keep the whole block until all is packed
    return first, is_constant, is_short, short[:, is_short], block[:, ~(is_constant | is_short)]


def _wide(first: np.ndarray, is_constant: np.ndarray, is_short: np.ndarray, *parts: np.ndarray) -> np.ndarray:
    """Restore the float64 block from the parts that `_narrow` returned; the flags are for each column."""
    block = np.empty((len(parts[0]), len(first)))
    block[:, is_constant], block[:, is_short], block[:, ~(is_constant | is_short)] = first[is_constant], *parts
    return block
