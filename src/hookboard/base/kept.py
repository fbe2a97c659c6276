"""What a checkpoint keeps of hookboard's objects: plain data that `torch.load(weights_only=True)` takes.

An object that lasts for a fit names the attributes that are kept in `keeps`, and they are set again in the object of
the resumed fit. An object of a class decorated with `kept` is made again from the arguments of its constructor.
"""

import inspect
import math
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

_AS_THEY_ARE = {type(None), bool, int, float, str, torch.dtype}

C = TypeVar("C", bound=type)


class Lasting(Protocol):
    """An object that lasts for a fit, of which a checkpoint keeps some attributes.

    If it has a method `on_restored`, it is called once they are set again; it raises where they do not fit together.
    """

    keeps: ClassVar[tuple[str, ...]]
    """The names of these attributes. An attribute that is a `Lasting` itself stays, and its attributes are set; it is
    left alone where it is None, now or in the checkpoint. What is kept in another form is a property with a setter."""


KEPT: dict[str, tuple[type, tuple[str, ...]]] = {}
"""The classes decorated with `kept`, by name, each with the names of its constructor's arguments."""


def kept(cls: C) -> C:
    """Decorate a class whose objects are kept in checkpoints, as the arguments of their constructor.

    Each argument must be an attribute too, as in a dataclass or a named tuple.
    """
    KEPT[cls.__name__] = cls, tuple(inspect.signature(cls).parameters)
    return cls


def state_of(value: Any) -> dict[str, Any]:
    """Return what a checkpoint keeps of a value, with tensors still on their device.

    Args:
        value: made of None, numbers (those of NumPy become Python's), dtypes, strings, lists, tuples, sets, mappings
            (which become dicts), deques, arrays, tensors, objects of classes decorated with `kept`, and `Lasting`
            objects. A kept object that occurs twice is one object again afterwards.

    Returns:
        `tree`: the value as dicts, lists and tuples. A dict with the key None stands for something else: None is the
        name of no layer, so that no other dict has this key. `numbers`: the values of all arrays, joined by dtype,
        because a file with one tensor for each array takes far longer to write. `tensors`: all tensors.

    Raises:
        TypeError: the value contains something else.

    >>> state_of({"a": (1, {2.5}), "b": np.zeros(2)})["tree"]
    {'a': (1, {None: 'set', 'of': [2.5]}), 'b': {None: 'array', 'at': ('<f8', 0), 'shape': (2,)}}
    """
    numbers: dict[str, list[np.ndarray]] = {}
    ends, tensors = Counter[str](), list[Tensor]()
    seen: dict[int, tuple[Any, dict[Any, Any]]] = {}  # with the object: an id is that of an object as long as it lives

    def tree(one: Any) -> Any:
        name = type(one).__name__
        if type(one) in _AS_THEY_ARE:
            return one
        if isinstance(one, np.generic):
            return one.item()
        if isinstance(one, np.ndarray):
            kind = one.dtype.str
            start, ends[kind] = ends[kind], ends[kind] + one.size
            numbers.setdefault(kind, []).append(one.ravel())
            return {None: "array", "at": (kind, start), "shape": one.shape}
        if isinstance(one, Tensor):
            tensors.append(one.detach())
            return {None: "tensor", "at": len(tensors) - 1}
        if hasattr(type(one), "keeps"):
            return {None: "lasting", **{each: tree(getattr(one, each)) for each in one.keeps}}
        if name in KEPT and type(one) is KEPT[name][0]:
            if id(one) not in seen:
                seen[id(one)] = one, {None: name, **{each: tree(getattr(one, each)) for each in KEPT[name][1]}}
            return seen[id(one)][1]
        if isinstance(one, Mapping):
            return {tree(key): tree(each) for key, each in one.items()}
        if isinstance(one, deque):
            return {None: "deque", "of": [*map(tree, one)], "maxlen": one.maxlen}
        if isinstance(one, set | frozenset):
            return {None: name, "of": [*map(tree, one)]}
        if isinstance(one, list | tuple):
            return (list if isinstance(one, list) else tuple)(map(tree, one))
        raise TypeError(f"objects of type {name} cannot be stored in a checkpoint")

    made = tree(value)
    joined = {kind: torch.from_numpy(np.concatenate(parts)) for kind, parts in numbers.items()}
    return {"tree": made, "numbers": joined, "tensors": tensors}


def set_state(owners: Mapping[str, Lasting], state: Mapping[str, Any]) -> None:
    """Set the attributes of objects to what `state_of` returned; those that it does not have stay as they are.

    Raises:
        ValueError: the state is damaged, or does not fit together. All objects are as before.
    """
    before = state_of(owners)
    try:
        _set_state(owners, state)
    except Exception as error:  # our own classes raise whatever they come upon
        _set_state(owners, before)
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _set_state(owners: Mapping[str, Lasting], state: Mapping[str, Any]) -> None:
    value = _values(state)
    for name, owner in owners.items():
        if name in state["tree"]:
            _set_attributes(owner, state["tree"][name], value)


def _set_attributes(owner: Any, tree: Mapping[Any, Any], value: Callable[[Any], Any]) -> None:
    for name in owner.keeps:
        now, part = getattr(owner, name), tree[name]
        lasts, lasted = hasattr(now, "keeps"), isinstance(part, dict) and part.get(None) == "lasting"
        if lasts and part is not None:
            _set_attributes(now, part, value)
        elif not lasts and not lasted:  # otherwise it is missing here or there, as on a rank that does not judge
            setattr(owner, name, value(part))
    if hasattr(owner, "on_restored"):
        owner.on_restored()


def _values(state: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Return a function that turns a part of `state["tree"]` back into the value."""
    numbers, tensors = {kind: joined.numpy() for kind, joined in state["numbers"].items()}, state["tensors"]
    made: dict[int, Any] = {}

    def value(tree: Any) -> Any:
        if isinstance(tree, list | tuple):
            return type(tree)(map(value, tree))
        if not isinstance(tree, dict):
            return tree
        if None not in tree:
            return {key: value(each) for key, each in tree.items()}
        if id(tree) not in made:
            made[id(tree)] = special(tree[None], tree)
        return made[id(tree)]

    def special(word: str, tree: Mapping[Any, Any]) -> Any:
        if word == "array":
            (kind, start), shape = tree["at"], tree["shape"]
            # A copy: to keep one array must not keep all others in memory.
            return numbers[kind][start : start + math.prod(shape)].reshape(shape).copy()
        if word == "tensor":
            return tensors[tree["at"]]
        if word == "deque":
            return deque(map(value, tree["of"]), tree["maxlen"])
        if word in ("set", "frozenset"):
            return {"set": set, "frozenset": frozenset}[word](map(value, tree["of"]))
        cls, names = KEPT[word]
        return cls(**{name: value(tree[name]) for name in names})

    return value
