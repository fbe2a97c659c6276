"""`CsvRuns`: the runs of Lightning's CSVLogger, given as by TensorBoard's data provider beside those that it has."""

import csv
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.data.provider import (
    BlobReference,
    BlobSequenceDatum,
    Run,
    RunTagFilter,
    ScalarDatum,
    TensorDatum,
    TensorTimeSeries,
)

from hookboard.board import HISTOGRAMS
from hookboard.records import CSV_INDEX, PLUGIN

METRICS = "metrics.csv"
"""The table of CSVLogger."""

Points = list[tuple[int, Any]]
"""(step, value) pairs, in the order in which they were written."""


class CsvRun:
    """What the folder of a CSVLogger holds; docs/loggers.md says where.

    Args:
        folder: the folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wall_time = max(path.stat().st_mtime for name in (METRICS, CSV_INDEX) if (path := folder / name).exists())

    @cached_property
    def scalars(self) -> dict[str, Points]:
        """The points of each column of its table that has a number.

        Raises:
            ValueError: the table is damaged.
        """
        found: dict[str, Points] = {}
        header, *rows = _rows(self.folder / METRICS) or [[]]  # it may not be there yet: CSVLogger waits for 100 steps
        if "step" not in header:
            return {}
        for row in rows:
            cells = dict(zip(header, row, strict=False))
            if (step := cells.pop("step", "")).isdecimal():
                for tag, text in cells.items():
                    if (value := _number(text)) is not None:
                        found.setdefault(tag, []).append((int(step), value))
        return found

    @cached_property
    def files(self) -> dict[str, tuple[int, Path]]:
        """Step and path of the latest file of each record and picture, by its tag."""
        rows = [row for row in _rows(self.folder / CSV_INDEX) if len(row) == 3 and row[1].isdecimal()]
        # A name that leads to another folder is none of ours.
        found = {tag: (int(step), self.folder / name) for tag, step, name in rows if Path(name).name == name}
        return {tag: (step, path) for tag, (step, path) in found.items() if path.is_file()}

    @cached_property
    def records(self) -> dict[str, Points]:
        """The latest strings of each record, in an array, as its only point; no strings if its file is damaged."""
        found = {tag: one for tag, one in self.files.items() if tag.startswith(f"{PLUGIN}/")}
        return {tag: [(step, np.array(_strings(path), dtype=object))] for tag, (step, path) in found.items()}

    @cached_property
    def histograms(self) -> dict[str, Points]:
        """The histogram of each tag at each step, shape (bins, 3): left edge, right edge and count."""
        found: dict[str, Points] = {}
        for path in sorted(self.folder.glob("histograms/*.npz"), key=_place):
            arrays = dict(_arrays(path))
            for name, edges in arrays.items():
                tag, _, last = name.rpartition(".")
                counts = arrays.get(f"{tag}.counts")
                if last == "edges" and counts is not None and edges.shape == (len(counts) + 1,):
                    columns = np.stack([edges[:-1], edges[1:], counts], axis=1).astype(np.float64)
                    found.setdefault(tag, []).append((_place(path)[0], columns))
        return found

    @property
    def pictures(self) -> dict[str, tuple[int, Path]]:
        """Step and path of the latest picture of each tag."""
        return {tag: one for tag, one in self.files.items() if tag not in self.records}

    def tensors(self, plugin: str) -> dict[str, Points]:
        """Return the tensors of a plugin, by tag."""
        return self.records if plugin == PLUGIN else self.histograms if plugin == HISTOGRAMS else {}


class CsvRuns:
    """A data provider for runs of CSVLogger and all that another provider has. `Source` asks it.

    Its methods are those of TensorBoard's `DataProvider`. Most return {run: {tag: ...}}.

    Args:
        others: the data provider of the event files.
        folders: name to folder of each run of CSVLogger.
    """

    def __init__(self, others: Any, folders: Mapping[str, Path]) -> None:
        self._others = others
        self._runs = {name: CsvRun(folder) for name, folder in folders.items()}

    def list_runs(self, context: Any, **options: Any) -> list[Run]:
        """List the runs of the other provider, then those of CSVLogger."""
        mine = [Run(run_id=name, run_name=name, start_time=run.wall_time) for name, run in self._runs.items()]
        return [*self._others.list_runs(context, **options), *mine]

    def read_last_scalars(self, context: Any, *, run_tag_filter: Any = None, **options: Any) -> dict[str, Any]:
        """Return the last point of each scalar tag."""
        found = dict(self._others.read_last_scalars(context, run_tag_filter=run_tag_filter, **options))
        for name, run in self._among(run_tag_filter):
            last = {tag: points[-1] for tag, points in _tagged(run.scalars, run_tag_filter)}
            found[name] = {tag: ScalarDatum(step, run.wall_time, value) for tag, (step, value) in last.items()}
        return found

    def read_scalars(self, context: Any, *, run_tag_filter: Any = None, **options: Any) -> dict[str, Any]:
        """Return the points of scalar tags."""
        found = dict(self._others.read_scalars(context, run_tag_filter=run_tag_filter, **options))
        for name, run in self._among(run_tag_filter):
            found[name] = {
                tag: [ScalarDatum(step, run.wall_time, value) for step, value in points]
                for tag, points in _tagged(run.scalars, run_tag_filter)
            }
        return found

    def list_tensors(
        self, context: Any, *, plugin_name: str, run_tag_filter: Any = None, **options: Any
    ) -> dict[str, Any]:
        """Describe the tensors of each tag of a plugin."""
        more = {"plugin_name": plugin_name, "run_tag_filter": run_tag_filter, **options}
        found = dict(self._others.list_tensors(context, **more))
        for name, run in self._among(run_tag_filter):
            found[name] = {
                tag: TensorTimeSeries(
                    max_step=max(step for step, _ in points),
                    max_wall_time=run.wall_time,
                    plugin_content=b"",
                    description="",
                    display_name="",
                )
                for tag, points in _tagged(run.tensors(plugin_name), run_tag_filter)
            }
        return found

    def read_tensors(
        self, context: Any, *, plugin_name: str, downsample: int, run_tag_filter: Any = None, **options: Any
    ) -> dict[str, Any]:
        """Return the tensors of tags of a plugin: at most `downsample` of each, evenly chosen, with the last."""
        more = {"plugin_name": plugin_name, "downsample": downsample, "run_tag_filter": run_tag_filter, **options}
        found = dict(self._others.read_tensors(context, **more))
        for name, run in self._among(run_tag_filter):
            found[name] = {
                tag: [TensorDatum(step, run.wall_time, array) for step, array in _some(points, downsample)]
                for tag, points in _tagged(run.tensors(plugin_name), run_tag_filter)
            }
        return found

    def list_blob_sequences(self, context: Any, *, run_tag_filter: Any = None, **options: Any) -> dict[str, Any]:
        """Return the tags of pictures by run; callers use only the tags, not what they are mapped to."""
        found = dict(self._others.list_blob_sequences(context, run_tag_filter=run_tag_filter, **options))
        return found | {name: run.pictures for name, run in self._among(run_tag_filter)}

    def read_blob_sequences(self, context: Any, *, run_tag_filter: Any = None, **options: Any) -> dict[str, Any]:
        """Return the key of the picture of each tag, after two others, which are unused: width and height."""
        found = dict(self._others.read_blob_sequences(context, run_tag_filter=run_tag_filter, **options))
        for name, run in self._among(run_tag_filter):
            found[name] = {
                tag: [BlobSequenceDatum(step, run.wall_time, (BlobReference(str(path)),) * 3)]
                for tag, (step, path) in _tagged(run.pictures, run_tag_filter)
            }
        return found

    def read_blob(self, context: Any, *, blob_key: str) -> bytes:
        """Return the picture of a key."""
        paths = {str(path): path for run in self._runs.values() for _, path in run.pictures.values()}
        if blob_key in paths:
            return paths[blob_key].read_bytes()
        return bytes(self._others.read_blob(context, blob_key=blob_key))

    def _among(self, wanted: RunTagFilter | None) -> Iterator[tuple[str, CsvRun]]:
        """Yield name and run of those that are asked for."""
        runs = None if wanted is None else wanted.runs
        return ((name, run) for name, run in self._runs.items() if runs is None or name in runs)


def csv_folders(folder: Path) -> set[Path]:
    """Return all folders, this one and those below, that a CSVLogger has written to."""
    return {path.parent for name in (METRICS, CSV_INDEX) for path in folder.rglob(name)}


def _tagged(found: Mapping[str, Any], wanted: RunTagFilter | None) -> Iterator[tuple[str, Any]]:
    """Yield the tags that are asked for, and what they have."""
    tags = None if wanted is None else wanted.tags
    return ((tag, one) for tag, one in found.items() if tags is None or tag in tags)


def _some(points: Sequence[Any], most: int) -> list[Any]:
    """Return at most this many of the points: evenly chosen, with the last."""
    if len(points) <= most:
        return list(points)
    return [points[i] for i in np.linspace(len(points) - 1, 0, most).round().astype(int)[::-1]]


def _rows(path: Path) -> list[list[str]]:
    """Return the rows of a table; none if there is no such file.

    Raises:
        ValueError: it is damaged.
    """
    if not path.exists():
        return []
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        try:
            return list(csv.reader(file))
        except csv.Error as error:
            raise ValueError(f"{str(path)!r} is no table: {error}.") from error


def _number(text: str) -> float | None:
    """Return the number in a cell; None if there is none.

    >>> _number("0.5"), _number("nan"), _number(""), _number("Adam")
    (0.5, nan, None, None)
    """
    try:
        return float(text)
    except ValueError:
        return None


def _place(path: Path) -> tuple[int, int]:
    """Return the step of a file of histograms, and its number among those of the step.

    >>> _place(Path("histograms/00000012_2.npz"))
    (12, 2)
    """
    step, _, further = path.stem.partition("_")
    return int(step) if step.isdecimal() else 0, int(further) if further.isdecimal() else 0


def _strings(path: Path) -> Iterable[bytes]:
    """Return the bytes of each array in a record's `.npz` file, in order; none if the file is damaged."""
    return [array.tobytes() for _, array in _arrays(path)]


def _arrays(path: Path) -> list[tuple[str, np.ndarray]]:
    """Return name and array of all arrays in a file; none if it is damaged."""
    try:
        with np.load(path) as arrays:
            return [(name, arrays[name]) for name in arrays.files]
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error):
        return []
