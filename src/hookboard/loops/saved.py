"""Saves the state of callbacks in a checkpoint, and restores it in a resumed fit.

A checkpoint has a list under `KEY`, with one entry for each callback that has a state, in the order of the Trainer.
Lightning's own hook, `Callback.state_dict`, needs a different `state_key` for each callback: it raises for two equal
callbacks, and a callback with changed arguments could not tell that there is a state with others.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hookboard.base.kept import set_state, state_of
from hookboard.loops.stage_state import StageState

KEY = "hookboard"

VERSION = 16
"""The format of an entry, the only one that can be restored. Increase it whenever what is saved changes."""

VARIABLE = ("stop_on", "nonfinite", "sync_dist", "report")
"""The arguments that may differ in the resumed fit."""


def checkpoint_entry(
    name: str, arguments: Mapping[str, str], states: Mapping[str, StageState]
) -> dict[str, Any] | None:
    """Return the checkpoint entry of a callback, with tensors still on the device; None if no stage keeps anything.

    Args:
        name: the name of the callback's class.
        arguments: the callback's arguments, see `arguments_of`.
        states: its state of each stage.
    """
    keeping = {stage: state for stage, state in states.items() if state.keeps}
    if not keeping:
        return None
    return {"version": VERSION, "callback": name, "arguments": arguments, "parts": state_of(keeping)}


def save(entry: Mapping[str, Any] | None, checkpoint: dict[str, Any]) -> None:
    """Append an entry to the list in a checkpoint, which waits for the device; None is not appended."""
    if entry is not None:
        tensors = [tensor.cpu() for tensor in entry["parts"]["tensors"]]
        checkpoint.setdefault(KEY, []).append({**entry, "parts": {**entry["parts"], "tensors": tensors}})


def arguments_of(callback: object, every_n_steps: int) -> dict[str, str]:
    """Return the arguments that must be equal in the resumed fit, by name, as text.

    Args:
        callback: a callback that has each argument of its constructor as an attribute.
        every_n_steps: the cadence in use, which replaces the argument of that name.

    Examples:
        >>> from hookboard import Checkup
        >>> arguments_of(Checkup(seconds=5), 50)
        {'seconds': '5', 'every_n_steps': '50'}
    """
    names = inspect.signature(type(callback)).parameters
    found = {name: _text_of(getattr(callback, name)) for name in names if hasattr(callback, name)}
    return {name: text for name, text in found.items() if name not in VARIABLE} | {"every_n_steps": str(every_n_steps)}


def restore(
    loaded: Any, name: str, arguments: Mapping[str, str], states: Mapping[str, StageState], must_be_there: bool
) -> None:
    """Restore the states of a callback's stages from the checkpoint that the fit resumes from.

    Args:
        loaded: the list that the checkpoint has under `KEY`; the entry that is used is removed from it.
        name: the name of the callback's class.
        arguments: the callback's arguments, see `arguments_of`.
        states: its state of each stage, which is changed.
        must_be_there: whether to raise if the checkpoint has no entry for this class, rather than restore nothing.

    Raises:
        ValueError: the entries for this class have other arguments or an unknown version, or are damaged; or there is
            none although it must be there.
    """
    try:
        of_class = [entry for entry in loaded if entry["callback"] == name]
        if other := next((entry for entry in of_class if entry["version"] != VERSION), None):
            raise ValueError(f"its format is version {other['version']!r}, but this hookboard reads version {VERSION}")
        mine = next((entry for entry in of_class if entry["arguments"] == arguments), None)
        if mine is not None:
            loaded[:] = [entry for entry in loaded if entry is not mine]  # the next equal callback has the next entry
            set_state(states, mine["parts"])
        elif of_class:
            raise ValueError(_difference(of_class[0]["arguments"], arguments))
        elif must_be_there:
            raise ValueError("it holds no state for this callback")
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _text_of(value: Any) -> str:
    """Return an argument as text that is equal in every process.

    That is the `repr` of a number, a string or None, the texts of a sequence's items in brackets, the name of a class,
    a function or an object with a `name`, and for any other object the name of its class.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(_text_of, value))}]"
    if value is None or isinstance(value, str | int | float):
        return repr(value)
    return str(getattr(value, "__qualname__", None) or getattr(value, "name", None) or type(value).__qualname__)


def _difference(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Return the arguments of `now` that were different before, as a clause, such as "window was 3 and is 5"."""
    return ", ".join(
        f"{name} was {before.get(name)} and is {now[name]}" for name in now if before.get(name) != now[name]
    )
