"""What a callback puts into a checkpoint, and finds there in a fit that is continued.

A checkpoint has a list under `KEY`, with one entry for each callback that has something to keep, in the order of the
Trainer. Lightning's own place, `state_dict`, wants another `state_key` for each callback: two that are alike would end
the Trainer, and one that is given other arguments would never see what there is.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hookboard.health import FORMS as OF_HEALTH
from hookboard.loops.stage_state import StageState
from hookboard.plain import Codecs, dataclass_codec, packed, unpacked
from hookboard.record import LayerFacts

KEY = "hookboard"

VERSION = 3
"""The format of an entry. A change of what is kept, or of what it means, takes another number."""

READ = frozenset({1, 2, VERSION})
"""The formats that are read. In the first, every channel had a row, and no width was kept; the second has no
experiments."""

FORMS: Codecs = {**OF_HEALTH, LayerFacts: dataclass_codec(LayerFacts)}

FREE = ("stop_on", "max_overhead", "nonfinite", "sync_dist")
"""The arguments that may be others in a fit that is continued."""


def entry_of(
    name: str, arguments: Mapping[str, str], states: Mapping[str, StageState], again: tuple[int, int] | None
) -> dict[str, Any] | None:
    """Return what a callback puts into a checkpoint, not yet written; None if it has nothing to keep.

    Args:
        name: of the callback's class.
        arguments: of the callback, see `arguments_of`.
        states: of its stages.
        again: see `StageState.state_dict`.
    """
    parts = {stage: found for stage, state in states.items() if (found := state.state_dict(again))}
    if not parts:
        return None
    return {"version": VERSION, "callback": name, "arguments": arguments, "parts": packed(parts, FORMS)}


def save(entry: Mapping[str, Any] | None, checkpoint: dict[str, Any]) -> None:
    """Write an entry into a checkpoint, which waits for the device."""
    if entry is not None:
        checkpoint.setdefault(KEY, []).append({**entry, "parts": entry["parts"].written()})


def arguments_of(callback: object, every_n_steps: int) -> dict[str, str]:
    """Return the arguments that decide what a callback knows of a run, as text.

    Args:
        callback: has each argument of its class as an attribute.
        every_n_steps: the cadence in force.
    """
    names = inspect.signature(type(callback)).parameters
    kept = {name: _text_of(getattr(callback, name)) for name in names if name not in FREE and hasattr(callback, name)}
    return kept | {"every_n_steps": str(every_n_steps)}


def go_on(
    loaded: Any, name: str, arguments: Mapping[str, str], states: Mapping[str, StageState], must_be_there: bool
) -> None:
    """Restore the states of stages from the checkpoint of the fit that this one continues.

    Args:
        loaded: what the checkpoint has under `KEY`.
        name: of the callback's class.
        arguments: of the callback, see `arguments_of`.
        states: of its stages.
        must_be_there: whether a checkpoint without an entry of this callback is an error.

    Raises:
        ValueError: the entry is not of this callback, or cannot be read.
    """
    parts = taken_from(loaded, name, arguments)
    if parts is None and must_be_there:
        raise ValueError("it holds nothing of this callback")
    for stage, state in states.items():
        if parts is not None and stage in parts:
            state.load_state_dict(parts[stage])


def taken_from(entries: Any, name: str, arguments: Mapping[str, str]) -> dict[str, Any] | None:
    """Remove a callback's entry from the list and return its parts by stage; other entries are for callbacks like it.

    Args:
        entries: what the checkpoint has under `KEY`.
        name: of the callback's class.
        arguments: of the callback.

    Returns:
        None if there is nothing of its class.

    Raises:
        ValueError: there is something, and it is not of this callback, or cannot be read.
    """
    try:
        of_class = [entry for entry in entries if entry["callback"] == name]
        if not of_class:
            return None
        if other := next((entry for entry in of_class if entry["version"] not in READ), None):
            raise ValueError(f"what it holds has version {other['version']!r}, and this hookboard reads {VERSION}")
        mine = next((entry for entry in of_class if entry["arguments"] == arguments), None)
        if mine is None:
            raise ValueError(_difference(of_class[0]["arguments"], arguments))
        entries[:] = [entry for entry in entries if entry is not mine]
        parts: dict[str, Any] = unpacked(mine["parts"], FORMS)
        return parts
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _text_of(value: Any) -> str:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(_text_of, value))}]"
    if value is None or isinstance(value, str | int | float):
        return repr(value)
    return str(getattr(value, "__qualname__", None) or getattr(value, "name", None) or type(value).__qualname__)


def _difference(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    return ", ".join(
        f"{name} was {before.get(name)} and is {now[name]}" for name in now if before.get(name) != now[name]
    )
