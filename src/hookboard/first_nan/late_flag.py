"""A flag on the device that says in which step something was not finite first, read without waiting."""

import itertools
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Noted:
    """What a step has noted.

    Args:
        step: the optimizer step.
        batch_idx: the index of the batch.
        is_backward: whether it is of the gradients, not of the loss.
    """

    step: int
    batch_idx: int
    is_backward: bool


NEVER = 2**31
"""The flag of a run in which everything was finite so far."""


class LateFlag:
    """Keeps on the device the number of the first note that was not finite.

    The host copies the number after each step, and reads the copy when it has arrived: in the next step, or in a later
    one if the host is far ahead of the device. It never waits, and the number stays exact.
    """

    def __init__(self) -> None:
        self._first: Tensor | None = None
        self._numbers = itertools.count()
        self._notes: deque[tuple[int, Noted]] = deque(maxlen=4096)
        self._copy: Tensor | None = None
        self._arrived: torch.cuda.Event | None = None
        self._is_said = False

    def note(self, value: Tensor, noted: Noted) -> None:
        """Note one number, shape (), of a step."""
        number = next(self._numbers)
        self._notes.append((number, noted))
        with torch.no_grad():
            value = value.detach()
            if self._first is None:
                self._first = torch.full((), NEVER, dtype=torch.int64, device=value.device)
            bad = torch.where(torch.isfinite(value).all(), NEVER, number).to(self._first.device)
            self._first = torch.minimum(self._first, bad)

    def read(self) -> Noted | None:
        """What was not finite first, once, as soon as the host knows; None otherwise."""
        if self._first is None or self._is_said:
            return None
        found = self._read_copy()
        if self._copy is None:
            self._send_copy(self._first)
        if found is None or found == NEVER:
            return None
        self._is_said = True
        return next((noted for number, noted in self._notes if number == found), None)

    def parts(self) -> dict[str, Any]:
        """What a fit that is continued from a checkpoint must know."""
        notes = [(number, noted.step, noted.batch_idx, noted.is_backward) for number, noted in self._notes]
        return {"first": self._first, "is_said": self._is_said, "notes": np.array(notes, np.int64).reshape(-1, 4)}

    def go_on(self, parts: Mapping[str, Any]) -> Noted | None:
        """Know it; returns what was not finite first, if `read` had not yet said so."""
        found = [note for note in parts["notes"].tolist() if note[0] == parts["first"] and not parts["is_said"]]
        self._is_said = parts["is_said"] or bool(found)
        return Noted(found[0][1], found[0][2], bool(found[0][3])) if found else None

    def _read_copy(self) -> int | None:
        if self._copy is None or (self._arrived is not None and not self._arrived.query()):
            return None
        copy, self._copy = self._copy, None
        return int(copy)

    def _send_copy(self, first: Tensor) -> None:
        if not first.is_cuda:
            self._copy = first
            return
        self._copy = torch.empty((), dtype=torch.int64, pin_memory=True)
        self._copy.copy_(first, non_blocking=True)
        self._arrived = torch.cuda.Event()
        self._arrived.record()
