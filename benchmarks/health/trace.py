"""`Trace`: everything that was seen of one training, as a file, so that it can be judged again in milliseconds."""

import io
import json
import math
import pickle
import statistics
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.health.cases import Truth
from torch import Tensor

from hookboard.health.look import Look
from hookboard.model.layers import Layer

FOLDER = Path(__file__).parent / "cache"
"""Where traces are kept."""

LAST = 20
"""The level of the loss at the end is the median of so many steps."""


class Extra:
    """What rules of other tools ask of a ReLU, a tanh or a sigmoid beside what a look has, of one step."""

    beyond: dict[float, float]
    """The share of its inputs whose absolute value is above the key."""
    variance: float
    """The variance of its inputs."""
    active: np.ndarray
    """The share of positive outputs of each channel."""
    percentile: np.ndarray
    """The 95th percentile of the absolute outputs of each channel."""
    saturation: np.ndarray
    """The saturation index of each channel: 0 where outputs are in the middle, 1 at their ends, by 50 bins."""

    def read_input(self, tensor: Tensor) -> None:
        """Read what goes in."""
        sizes = tensor.abs()
        self.variance = tensor.float().var().item()
        self.beyond = {limit: (sizes > limit).float().mean().item() for limit in (5.0, 9.5, 17.0)}

    def read_output(self, units: Tensor) -> None:
        """Read the outputs, shape (channels, values)."""
        units = units.float()
        self.active = (units > 0).float().mean(1).numpy()
        rank = max(1, round(0.95 * units.shape[1]))
        self.percentile = units.abs().kthvalue(rank, 1).values.numpy()
        low = 0.0 if units.min() >= 0 else -1.0
        centred = ((units - low) / (1.0 - low) * 2 - 1).clamp(-1, 1).nan_to_num()
        bins = ((centred + 1) * 25).long().clamp(0, 49)
        sums = torch.zeros(len(units), 50, dtype=units.dtype).scatter_add(1, bins, centred)
        self.saturation = (sums.abs().sum(1) / units.shape[1]).numpy()


@dataclass(frozen=True)
class Head:
    """What stands at the beginning of a trace's file, to be read without the rest.

    Args:
        source: what the code was that made it.
        start: the first cross entropy; NaN of what is no classifier.
        training: the cross entropy at the end, the median of the last steps; infinite if it is not finite.
        held_out: the cross entropy of the last validation; infinite if it is not finite.
        by_itself: whether it is a defect whatever the loss does.
    """

    source: str
    start: float
    training: float
    held_out: float
    by_itself: bool

    @staticmethod
    def of(path: Path) -> "Head":
        with path.open("rb") as file:
            return Head(**json.loads(file.readline()))


@dataclass
class Trace:
    """What was seen of a training.

    Args:
        truth: what is true of it.
        every: a look was taken once in so many steps.
        source: what the code was that made it.
        layers: every layer that is watched, by name.
        entries: what the judge was told, in order: the name of its method, and the arguments.
        extras: by step and module, what only other tools' rules need.
        losses: what was minimized, of every step.
        entropies: the cross entropy of every step, whatever was minimized; empty if it is no classifier.
        accuracies: of every step.
        held_out: step, cross entropy and accuracy of every validation.
        seconds: how long the training took.
        failure: the error that ended it.
        warnings: what hookboard warned of.
    """

    truth: Truth = field(default_factory=Truth)
    every: int = 0
    source: str = ""
    layers: dict[str, Layer] = field(default_factory=dict)
    entries: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    extras: dict[int, dict[str, Extra]] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    held_out: list[tuple[int, float, float]] = field(default_factory=list)
    seconds: float = 0.0
    failure: str = ""
    warnings: list[str] = field(default_factory=list)

    @property
    def head(self) -> Head:
        last = self.entropies[-LAST:] if not self.failure else []
        training = statistics.median(last) if last else math.inf
        held_out = self.held_out[-1][1] if self.held_out else math.inf
        start = self.entropies[0] if self.entropies else math.nan
        return Head(self.source, start, _bounded(training), _bounded(held_out), self.truth.by_itself)

    @property
    def looks(self) -> list[Look]:
        return [given[0] for name, given, _ in self.entries if name == "see"]

    def save(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        pickled = io.BytesIO()
        _Pickler(pickled).dump(self)
        head = json.dumps(asdict(self.head)).encode()
        path.write_bytes(head + b"\n" + zlib.compress(pickled.getbuffer(), 1))

    @staticmethod
    def load(path: Path) -> "Trace":
        with path.open("rb") as file:
            file.readline()
            trace = pickle.loads(zlib.decompress(file.read()))
        assert isinstance(trace, Trace)
        return trace


class _Pickler(pickle.Pickler):
    """Keeps the rows of channels in float32: they are most of a trace."""

    def reducer_override(self, given: Any) -> Any:
        if isinstance(given, np.ndarray) and given.dtype == np.float64 and given.ndim == 2:
            return _wide, (given.astype(np.float32),)
        return NotImplemented


def _bounded(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf


def _wide(narrow: np.ndarray) -> np.ndarray:
    return narrow.astype(np.float64)
