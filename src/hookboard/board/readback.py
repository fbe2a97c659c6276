"""`read`: a run in Python, from its event files."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hookboard.base.messages import listed
from hookboard.board.folders import open_folders
from hookboard.board.source import cells_of, columns_for

if TYPE_CHECKING:
    import pandas

    from hookboard.health.rule import Verdicts


@dataclass(frozen=True, repr=False)
class Measured:
    """One quantity of all layers over a run.

    Args:
        layers: the names of the rows: layers, or parameters for a quantity of parameters.
        steps: increasing optimizer steps, shape (steps,).
        values: shape (layers, steps), float64; NaN where nothing was measured, or where a statistic is NaN.
    """

    layers: tuple[str, ...]
    steps: np.ndarray
    values: np.ndarray

    def __getitem__(self, layer: str) -> np.ndarray:
        """Return the values of a layer, shape (steps,)."""
        return np.asarray(self.values[self.layers.index(layer)])

    def __repr__(self) -> str:
        ends = f"from step {self.steps[0]} to {self.steps[-1]}" if len(self.steps) else "no steps"
        return f"Measured({len(self.layers)} layers, {len(self.steps)} steps, {ends})"


@dataclass(frozen=True, repr=False)
class ReadRun:
    """What the files of a run hold.

    Args:
        name: the name of its folder.
        headline: one sentence saying how many verdicts there are; "" if HealthMonitor did not watch the run.
        records: the verdicts as dictionaries with the fields of `hookboard.Verdict`, worst first.
        readings: the values of each quantity, by layer and step. Quantities are named as in the tab's address, such as
            "health/activation_rms" or "train/gradient/std".
    """

    name: str
    headline: str
    records: tuple[Mapping[str, Any], ...]
    readings: Mapping[str, Measured]

    @cached_property
    def verdicts(self) -> "Verdicts":
        """The verdicts, worst first."""
        from hookboard.health.rule import Verdict, Verdicts  # it imports torch

        return Verdicts(Verdict(**record) for record in self.records)

    def to_pandas(self) -> "pandas.DataFrame":
        """Return the readings as a DataFrame with the columns quantity, layer, step and value; NaN has no row.

        Raises:
            ImportError: pandas is not installed.
        """
        import pandas

        frames = []
        for quantity, measured in self.readings.items():
            rows, columns = np.nonzero(~np.isnan(measured.values))
            layers = np.array(measured.layers, dtype=object)[rows]
            values = measured.values[rows, columns]
            frame = {"quantity": quantity, "layer": layers, "step": measured.steps[columns], "value": values}
            frames.append(pandas.DataFrame(frame))
        empty = pandas.DataFrame(columns=["quantity", "layer", "step", "value"])
        return pandas.concat(frames, ignore_index=True) if frames else empty

    def __repr__(self) -> str:
        return f"ReadRun({self.name!r}: {self.headline or 'no verdicts'} Readings: {listed(self.readings)})"


def read(folder: str | os.PathLike[str]) -> ReadRun:
    """Read a run from its event files.

    Args:
        folder: the folder that `TensorBoardLogger` or `SummaryWriter` wrote, such as "lightning_logs/version_0".

    Raises:
        ValueError: the folder does not exist, holds no hookboard data, or holds several runs.
    """
    board, names = open_folders([folder])
    if len(names) > 1:
        raise ValueError(
            f"{os.fspath(folder)!r} contains {len(names)} runs; pass the folder of one run: {listed(names)}."
        )
    run = board.logged_run(names[0])
    readings = {}
    for one in run.series.values():
        curves = board.curves(run, one)
        rows = [row for row in run.rows[one.id] if row in curves]
        steps = columns_for((curves[row] for row in rows), np.iinfo(np.int64).max)
        values = [cells_of(curves[row], steps).values for row in rows]
        readings[one.id] = Measured(tuple(rows), steps, np.array(values).reshape(len(rows), len(steps)))
    headline, verdicts = (run.health.headline, run.health.verdicts) if run.health else ("", ())
    return ReadRun(run.name, headline, tuple(verdicts), readings)
