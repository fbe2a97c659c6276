"""Opens folders with event files. `read`: a run in Python."""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.io_wrapper import IsSummaryEventsFile
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.util import tb_logging

from hookboard.base.messages import listed, unknown, warn
from hookboard.base.records import PLUGIN
from hookboard.board.board import Board
from hookboard.board.source import Source, cells_of, columns_for

PREFIX = "Truncated record in "
"""How TensorBoard begins what it says of each error at which it stops reading a file."""

KEPT = {"scalars": 0, "histograms": 0, "images": 0, PLUGIN: 10}
"""By plugin, how many points of each tag are kept; 0 is all. The last health record holds everything."""


def open_folders(folders: Sequence[str | os.PathLike[str]]) -> tuple[Board, list[str]]:
    """Return the board of the event files in and below some folders, and the names of their runs in natural order."""
    paths = [_existing(Path(folder)).resolve() for folder in folders]
    # A run is named by its path from here.
    base = os.path.commonpath([path.parent for path in paths])
    try:
        multiplexer = _read(paths, base)
    except UnicodeEncodeError as error:  # TensorBoard encodes paths, unlike Python, which takes any bytes
        cure = "rename it, or set PYTHONUTF8=1 if the name is correct"
        raise ValueError(
            f"the path {error.object!r} is not valid UTF-8, which TensorBoard requires; {cure}."
        ) from error
    board = Board(Source(MultiplexerDataProvider(multiplexer, base), RequestContext(), ""))
    names = [run["name"] for run in board.runs()["runs"]]
    if not names:
        listing = " and ".join(repr(os.fspath(folder)) for folder in folders)
        raise ValueError(f"no event file in {listing} has hookboard data (TensorBoardLogger writes event files).")
    return board, names


def _read(paths: Sequence[Path], base: str) -> EventMultiplexer:
    """Return the event files in some folders, read. Of what cannot be read a warning names the folder and the cause."""
    multiplexer = EventMultiplexer(tensor_size_guidance=KEPT)
    for place in (place for path in paths for place in _with_events(path)):
        name = Path(os.path.relpath(place, base)).as_posix()
        multiplexer.AddRun(place, name)
        try:
            with _noting_damage() as causes:
                multiplexer.GetAccumulator(name).Reload()
        except UnicodeEncodeError:  # for which `open_folders` has a text
            raise
        except Exception as error:  # a file may hold any nonsense; what stands before it was read
            causes = [f"{type(error).__name__}: {error}"]
        if causes:
            warn(f"{place}: the rest of its event files cannot be read ({causes[0]})")
    return multiplexer


@contextmanager
def _noting_damage() -> Iterator[list[str]]:
    """Collect the errors at which TensorBoard stops reading a file, which it tells its own log alone, for debugging."""
    damaged, logger = list[str](), tb_logging.get_logger()
    level, shown = logger.level, logger.getEffectiveLevel()

    def note(line: logging.LogRecord) -> bool:
        # It begins like this for every error; for a record that is cut off, the error says so again, in small letters.
        # That counts as none: the run may still be writing it.
        message = line.getMessage()
        if message.startswith(PREFIX) and "truncated record" not in message:
            damaged.append(message.removeprefix(PREFIX))
        return bool(line.levelno >= shown)

    logger.setLevel(logging.DEBUG)
    logger.addFilter(note)
    try:
        yield damaged
    finally:
        logger.removeFilter(note)
        logger.setLevel(level)


def _with_events(path: Path) -> Iterator[str]:

    def left_out(error: OSError) -> None:
        warn(f"a folder was left out: {error}")

    for place, _, files in os.walk(path, followlinks=True, onerror=left_out):
        if any(map(IsSummaryEventsFile, files)):
            yield place


def _existing(path: Path) -> Path:
    """Return the path if it is a folder; otherwise raise a ValueError that names folders like it."""
    if path.is_dir():
        return path
    if path.exists():
        raise ValueError(f"{str(path)!r} is a file; pass the folder of a run.")
    parent = _existing(path.parent)
    folders = sorted(str(place) for place in parent.iterdir() if place.is_dir())
    if not folders:
        raise ValueError(f"unknown folder {str(path)!r}; {str(parent)!r} has no subfolders.")
    raise unknown("folder", str(path), folders)


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
    for series in run.series.values():
        curves = board.curves(run, series)
        rows = [row for row in run.rows[series.id] if row in curves]
        steps = columns_for((curves[row] for row in rows), np.iinfo(np.int64).max)
        values = [cells_of(curves[row], steps).values for row in rows]
        readings[series.id] = Measured(tuple(rows), steps, np.array(values).reshape(len(rows), len(steps)))
    headline, verdicts = (run.health.headline, run.health.verdicts) if run.health else ("", ())
    return ReadRun(run.name, headline, tuple(verdicts), readings)
