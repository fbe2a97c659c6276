"""What a callback puts into a checkpoint, and finds there in a fit that is continued.

A checkpoint has a list under `KEY`, with one entry for each callback that has something to keep, in the order of the
Trainer. Lightning's own place, `state_dict`, wants another `state_key` for each callback: two that are alike would end
the Trainer, and one that is given other arguments would never see what there is.
"""

import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from lightning.pytorch import Trainer

from hookboard.health import FORMS as OF_HEALTH
from hookboard.loops.course import Course
from hookboard.loops.duties import W
from hookboard.loops.trainer import alert, batch_to_repeat, is_alone, let_go_of_model
from hookboard.plain import Forms, form_of_dataclass, packed, unpacked
from hookboard.record import LayerFacts

KEY = "hookboard"

VERSION = 2
"""The format of an entry. A change of what is kept, or of what it means, takes another number."""

READ = frozenset({1, VERSION})
"""The formats that are read. In the first, every channel had a row, and no width was kept."""

FORMS: Forms = {**OF_HEALTH, LayerFacts: form_of_dataclass(LayerFacts)}

FREE = ("stop_on", "max_overhead", "nonfinite", "sync_dist")
"""The arguments that may be others in a fit that is continued."""


class Saved(Course[W]):
    """Base of all callbacks: a checkpoint has what they know of the fit, and a fit that is continued knows it again."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[str, Any] | None = None  # what the last fit knew when it ended
        self._loaded: Any = None  # what the checkpoint of the fit holds that this one continues; None without it

    def __getstate__(self) -> dict[str, Any]:
        """The configuration."""
        return super().__getstate__() | {"_kept": None, "_loaded": None}

    def _entry(self, trainer: Trainer) -> dict[str, Any] | None:
        """What goes into a checkpoint now, not yet written; None if there is nothing. After the fit, of its end."""
        if not self._live or is_alone(trainer):
            return self._kept
        self._worker.wait()
        again = batch_to_repeat(trainer)
        parts = {stage: found for stage, watch in self._live.items() if (found := watch.parts(again))}
        if not parts:
            return None
        what = {"arguments": self._arguments(), "parts": packed(parts, FORMS)}
        return {"version": VERSION, "callback": self._name, **what}

    def _save(self, trainer: Trainer, checkpoint: dict[str, Any]) -> None:
        """Put what is known of the fit into the checkpoint, which waits for the device."""
        try:
            entry = self._entry(trainer)
            if entry is not None:
                checkpoint.setdefault(KEY, []).append({**entry, "parts": entry["parts"].written()})
        except Exception as error:
            alert(f"what {self._name} has seen is not in the checkpoint: {type(error).__name__}: {error}")

    def _arguments(self) -> dict[str, str]:
        """The arguments that decide what it knows of a run, as text, with the cadence that is in force."""
        names = inspect.signature(type(self)).parameters
        kept = {name: _text_of(getattr(self, name)) for name in names if name not in FREE and hasattr(self, name)}
        return kept | {"every_n_steps": str(next(iter(self._live.values())).every_n_steps)}

    def _go_on(self, trainer: Trainer) -> None:
        """Know what the fit knew that this one continues; where that cannot be, say why, and begin anew."""
        loaded, self._loaded = self._loaded, None
        if loaded is None or not self._live:
            return
        try:
            parts = taken_from(loaded, self._name, self._arguments())
            if parts is None and self.remembers and trainer.global_step:
                raise ValueError("it holds nothing of this callback")
            for stage, watch in self._live.items():
                if parts is not None and stage in parts:
                    watch.go_on(parts[stage])
        except Exception as error:
            alert(f"{self._name} begins anew, without what was seen before the checkpoint: {error}.")

    def _end_run(self, trainer: Trainer) -> None:
        """End all watches; what they know is kept for a checkpoint that is written after the fit."""
        self._loaded = None
        try:
            with suppress(Exception):  # a fault that has ended the fit may be one here too
                self._kept = self._entry(trainer)
            self._end_all()
        finally:
            let_go_of_model(self)


def taken_from(entries: Any, name: str, arguments: Mapping[str, str]) -> dict[str, Any] | None:
    """Take what a callback has kept, by stage, out of the list: what is left is for others like it.

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
