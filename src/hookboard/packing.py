"""Turns objects of hookboard into dicts, lists, numbers and tensors, as `torch.load(weights_only=True)` takes them.

What these lack becomes a dict whose first key names its type: {"is": "Case", "of": {...}} for an object.
"""

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

_AS_THEY_ARE = {type(None), bool, int, float, str}


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


def packed(value: Any, forms: Codecs) -> Any:
    """Pack a value. Arrays are copied; tensors are not, and stay on their device.

    Args:
        value: made of None, numbers (those of NumPy are unpacked as Python's), strings, lists, tuples, sets, mappings
            (unpacked as dicts), deques, arrays, tensors (unpacked as arrays), and objects of the classes in `forms`. An
            object of these classes that occurs twice is packed once.
        forms: how to pack the objects of each class.

    Raises:
        TypeError: the value contains something else.

    Examples:
        >>> packed((1, {2.5}), {})
        {'tuple': [1, {'set': [2.5]}]}
        >>> unpacked(packed({"a": (1, {2.5}), "b": np.zeros(2)}, {}), {})
        {'a': (1, {2.5}), 'b': array([0., 0.])}
    """
    seen: dict[int, tuple[Any, dict[str, Any]]] = {}  # with the object: an id is that of an object as long as it lives

    def tree(one: Any) -> Any:
        if type(one) in _AS_THEY_ARE:
            return one
        if isinstance(one, np.generic):
            return one.item()
        if isinstance(one, np.ndarray):
            return {"array": torch.from_numpy(one.copy())}
        if isinstance(one, Tensor):
            return {"array": one.detach()}
        if type(one) in forms:
            if id(one) not in seen:
                parts = {name: tree(part) for name, part in forms[type(one)].take(one).items()}
                seen[id(one)] = one, {"is": type(one).__name__, "of": parts}
            return seen[id(one)][1]
        if isinstance(one, Mapping):
            return {"mapping": [[tree(key), tree(each)] for key, each in one.items()]}
        if isinstance(one, deque):
            return {"deque": [one.maxlen, [tree(each) for each in one]]}
        if isinstance(one, list):
            return [tree(each) for each in one]
        for cls in (tuple, frozenset, set):
            if isinstance(one, cls):
                return {cls.__name__: [tree(each) for each in one]}
        raise TypeError(f"a {type(one).__name__} cannot be packed")

    return tree(value)


def on_host(tree: Any) -> Any:
    """Move the tensors of a packed value to the CPU, in place, and return it; wait for their devices."""
    for key, each in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        tree[key] = each.cpu() if isinstance(each, Tensor) else on_host(each)
    return tree


def unpacked(given: Any, forms: Codecs) -> Any:
    """Return the value that was packed.

    Raises:
        ValueError: it is damaged, or holds a class that is not in `forms`.
    """
    makers = {cls.__name__: form.make for cls, form in forms.items()}
    made: dict[int, Any] = {}

    def value(tree: Any) -> Any:
        if isinstance(tree, list):
            return [value(each) for each in tree]
        if not isinstance(tree, dict):
            return tree
        if "is" in tree:
            if id(tree) not in made:
                made[id(tree)] = makers[tree["is"]]({name: value(part) for name, part in tree["of"].items()})
            return made[id(tree)]
        ((word, held),) = tree.items()
        if word == "array":
            return held.numpy()
        if word == "mapping":
            return {value(key): value(each) for key, each in held}
        if word == "deque":
            return deque(map(value, held[1]), maxlen=held[0])
        return {"tuple": tuple, "frozenset": frozenset, "set": set}[word](map(value, held))

    try:
        return value(given)
    except Exception as error:  # our own classes raise whatever they come upon
        raise ValueError(f"{type(error).__name__}: {error}") from error
