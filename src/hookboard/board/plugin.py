"""`HookboardPlugin`: the tab in TensorBoard, which refuses wrong requests; and the answers that a report holds."""

import base64
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tensorboard.backend import http_util
from tensorboard.context import RequestContext
from tensorboard.plugins import base_plugin
from tensorboard.util import tb_logging
from werkzeug import Request, Response

from hookboard.base.records import PLUGIN
from hookboard.board.board import Answer, Board, Cache, json_text
from hookboard.board.logged_run import LoggedRun, is_of_hookboard
from hookboard.board.source import RefusalError, Source

STATIC = Path(__file__).parent / "static"

PLOTLY = Path(__file__).parent / "plotly" / "plotly-cartesian.min.js"
"""What draws the charts, as plotly.js publishes it; the README beside it says how to replace it."""

FILE_TYPES = {".js": "text/javascript", ".css": "text/css"}
"""MIME types of the files that are served, by suffix."""

PICTURE_TYPES = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg"}
"""MIME types of the pictures that are served, by their first bytes."""

DAY_SECONDS = 24 * 3600

MAX_COLUMNS = 2000


class HookboardPlugin(base_plugin.TBPlugin):  # type: ignore[misc]  # TensorBoard has no types
    """The tab "Hookboard"."""

    plugin_name = PLUGIN

    def __init__(self, context: base_plugin.TBContext) -> None:
        self._provider = context.data_provider
        self._cache = Cache()

    def get_plugin_apps(self) -> dict[str, Any]:
        """Return the paths that are served, each with the function that answers."""
        answers: dict[str, Callable[[Board, Request], Answer | Response]] = {
            "/runs": lambda board, request: board.runs(),
            "/run": lambda board, request: board.run(_run(board, request)),
            "/map": _map,
            "/layer": _layer,
            "/histogram": lambda board, request: board.histogram(_run(board, request), _given(request, "tag")),
            "/picture": _picture,
            "/plotly.js": _file(PLOTLY, DAY_SECONDS),
        }
        answers |= {f"/{path.name}": _file(path) for path in STATIC.iterdir() if path.suffix in FILE_TYPES}
        return {path: self._app(answer) for path, answer in answers.items()}

    def is_active(self) -> bool:
        """Return True if any run has a built-in statistic; TensorBoard asks this only if no run has a record."""
        source = Source(self._provider, RequestContext(), "")  # it asks without a request
        return any(is_of_hookboard(tags, ()) for tags in source.last_scalars().values())

    def frontend_metadata(self) -> base_plugin.FrontendMetadata:
        """Return the page's first module and the name of the tab."""
        return base_plugin.FrontendMetadata(es_module_path="/index.js", tab_name="Hookboard")

    def _app(self, answer: Callable[[Board, Request], Answer | Response]) -> Any:
        def app(request: Request) -> Response:
            # TensorBoard has imported it before. Without TensorBoard, it would warn of an old library in it.
            from tensorboard import plugin_util

            if request.method not in ("GET", "HEAD"):
                return _json(request, {"error": f"method {request.method} is not supported; use GET."}, 405)
            context, experiment = plugin_util.context(request.environ), plugin_util.experiment_id(request.environ)
            try:
                said = answer(Board(Source(self._provider, context, experiment), self._cache), request)
                return said if isinstance(said, Response) else _json(request, said)
            except RefusalError as error:
                return _json(request, {"error": str(error)}, error.code)
            except Exception as error:  # for the tab to show; TensorBoard would answer a bare 500
                tb_logging.get_logger().exception("hookboard could not answer %s", request.full_path)
                return _json(request, {"error": f"hookboard failed with an internal error: {error!r}"}, 500)

        return Request.application(app)


def _run(board: Board, request: Request, name: str = "run") -> LoggedRun:
    return board.logged_run(_given(request, name))


def _map(board: Board, request: Request) -> Answer:
    run, series, columns = _run(board, request), _given(request, "series"), _columns(request)
    against = None
    if "against" in request.args:
        against = _run(board, request, "against"), request.args.get("against_series") or series
    return board.map(run, series, columns, against)


def _layer(board: Board, request: Request) -> Answer:
    layer = "" if request.args.get("layer") == "" else _given(request, "layer")  # "" is the whole model
    return board.layer(_run(board, request), layer)


def _given(request: Request, name: str) -> str:
    value = request.args.get(name, "")
    if not value:
        given = ", ".join(request.args) or "none"
        raise RefusalError(f"{request.path} needs a non-empty parameter {name!r}; got {given}.")
    return str(value)


def _columns(request: Request) -> int:
    columns = request.args.get("columns", "400")
    if not (columns.isascii() and columns.isdigit() and len(columns) < 9 and 1 <= int(columns) <= MAX_COLUMNS):
        raise RefusalError(f"columns={columns!r} is invalid: use a whole number from 1 to {MAX_COLUMNS}.")
    return int(columns)


def _json(request: Request, answer: Answer, code: int = 200) -> Response:
    return _response(request, json_text(answer), "application/json", code=code)


def _picture(board: Board, request: Request) -> Response:
    key = _given(request, "key")
    picture = board.source.picture(key)
    mime = picture_type(picture)
    if mime is None:
        raise RefusalError(f"key={key!r} is not a PNG or JPEG picture.")
    return _response(request, picture, mime)


def picture_type(picture: bytes) -> str | None:
    """Return the MIME type of a PNG or JPEG picture, None for anything else."""
    return next((mime for start, mime in PICTURE_TYPES.items() if picture.startswith(start)), None)


def _file(path: Path, expires: int = 0) -> Callable[[Board, Request], Response]:
    return lambda board, request: _response(request, path.read_bytes(), FILE_TYPES[path.suffix], expires=expires)


def _response(request: Request, content: str | bytes, mime: str, **options: Any) -> Response:
    response: Response = http_util.Respond(request, content, mime, **options)  # gzipped, if the browser takes that
    return response


Asked = list[str]
"""A route and its parameters, in the order in which the page gives them, without `columns`."""

DIGITS = 4
"""How many significant digits numbers have."""

MAX_HISTOGRAM_STEPS, MAX_HISTOGRAM_NUMBERS = 30, 100_000
"""Maximum number of steps of a histogram, and of numbers in all histograms."""

MAX_PICTURE_BYTES = 1_000_000
"""Maximum size of all pictures together."""

MIN_LIST = 8
"""Minimum length of a list that `pooled` stores once and refers to."""


def answers_of(board: Board, names: Sequence[str], columns: int) -> list[tuple[Asked, Answer]]:
    """Return each request that the page may make of some runs, with the answer."""
    listed = {"runs": [run for run in board.runs()["runs"] if run["name"] in names], "hint": ""}
    found: list[tuple[Asked, Answer]] = [(["runs"], listed)]
    runs = [board.logged_run(name) for name in names]
    room = _Room()
    for run in runs:
        found += [*_maps(board, run, runs, columns), *_layers(board, run, room)]
    for run in runs:
        answer = board.run(run)
        found.append((["run", run.name], {**answer, "warnings": [*answer["warnings"], *room.warnings()]}))
    return found


def _maps(board: Board, run: LoggedRun, runs: Iterable[LoggedRun], columns: int) -> Iterator[tuple[Asked, Answer]]:
    """Yield the map of each series, alone and against the other stages and the other runs that have it."""
    for series in run.series.values():
        yield ["map", run.name, series.id], board.map(run, series.id, columns)
        for other in run.series.values():
            if (other.kind, other.statistic) == (series.kind, series.statistic) and other.stage != series.stage:
                answer = board.map(run, series.id, columns, (run, other.id))
                yield ["map", run.name, series.id, run.name, other.id], answer
        for against in runs:
            if against is not run and series.id in against.series:
                answer = board.map(run, series.id, columns, (against, series.id))
                yield ["map", run.name, series.id, against.name], answer


class _Room:
    """Counts how many histogram numbers and picture bytes still fit into the report, and what did not fit."""

    def __init__(self) -> None:
        self.left: dict[str, float] = {"histogram": MAX_HISTOGRAM_NUMBERS, "picture": MAX_PICTURE_BYTES}
        self.left_out: Counter[str] = Counter()

    def takes(self, kind: str, size: float) -> bool:
        fits = size <= self.left[kind]
        if fits:
            self.left[kind] -= size
        else:
            self.left_out[kind] += 1
        return fits

    def warnings(self) -> Iterator[str]:
        for kind, count in self.left_out.items():
            what = f"{count} {kind}{'s' if count > 1 else ''}"
            yield f"This report leaves out {what} to stay small; the tab in TensorBoard shows everything."


def _layers(board: Board, run: LoggedRun, room: _Room) -> Iterator[tuple[Asked, Answer]]:
    """Yield the page of each layer with its histograms and pictures, those with a verdict first: not all may fit."""
    answers = [board.layer(run, layer) for layer in run.layers]
    for answer in sorted(answers, key=lambda answer: not answer["verdicts"]):
        histograms, pictures = [], []
        for entry in answer["histograms"]:
            thinned = _thinned(board.histogram(run, entry["tag"]))
            if room.takes("histogram", 3 * sum(map(len, thinned["counts"]))):
                histograms.append(entry)
                yield ["histogram", run.name, entry["tag"]], thinned
        for entry in answer["pictures"]:
            data = board.source.picture(entry["keys"][-1])
            mime = picture_type(data)
            if room.takes("picture", len(data) if mime else math.inf):
                key = f"data:{mime};base64,{base64.b64encode(data).decode()}"
                pictures.append({**entry, "steps": entry["steps"][-1:], "keys": [key]})
        yield (
            ["layer", run.name, answer["layer"]["name"]],
            {**answer, "histograms": histograms, "pictures": pictures},
        )


def _thinned(histogram: Answer) -> Answer:
    """Return a histogram at MAX_HISTOGRAM_STEPS of its steps, evenly chosen."""
    last = len(histogram["steps"]) - 1
    kept = sorted({round(last * i / (MAX_HISTOGRAM_STEPS - 1)) for i in range(MAX_HISTOGRAM_STEPS)})
    columns = {name: [histogram[name][i] for i in kept] for name in ("steps", "left", "right", "counts")}
    return {**histogram, **columns}


def pooled(value: Any, lists: dict[tuple[Any, ...], int]) -> Any:
    """Return an answer with a reference in place of each long list of numbers or texts, stored once in `lists`.

    >>> lists = {}
    >>> pooled({"steps": list(range(8)), "values": [[0.123456, None]]}, lists), lists
    ({'steps': {'$': 0}, 'values': [[0.1235, None]]}, {(0, 1, 2, 3, 4, 5, 6, 7): 0})
    """
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {name: pooled(item, lists) for name, item in value.items()}
    if not isinstance(value, list | tuple):
        return value
    items = [pooled(item, lists) for item in value]
    if len(items) < MIN_LIST or any(isinstance(item, dict | list) for item in items):
        return items
    return {"$": lists.setdefault(tuple(items), len(lists))}
