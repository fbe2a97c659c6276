"""`page_of`: the tab's page in one HTML file, with the answers of its server inside."""

import base64
import gzip
import hashlib
import html
import re
import time
from collections.abc import Mapping, Sequence
from functools import cache
from graphlib import TopologicalSorter
from importlib import metadata
from pathlib import Path
from typing import Any

from hookboard.board.board import Answer, Board, json_text
from hookboard.board.folders import open_folders
from hookboard.board.plugin import PLOTLY, STATIC, answers_of, pooled

OWN_STATIC = Path(__file__).parent / "report"

FIRST = "report.js"
"""The module that imports all others."""

MAX_BYTES = 5_000_000
"""Maximum size of a report, in characters; a report with MIN_COLUMNS steps may be larger."""

MAX_COLUMNS, MIN_COLUMNS = 400, 20
"""Maximum and minimum number of steps of a series; the page itself asks for 400."""

BYTES_OF_CELL = 4
"""About the size of a number in a report, for a first guess."""

IMPORT = re.compile(r'^import \{ (.+) \} from "\./(.+)";$', re.MULTILINE)
EXPORT = re.compile(r"^export ((?:async )?function|const) (\w+)", re.MULTILINE)
"""The only forms of import and export that the page's modules have."""

PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} · {project} · Hookboard</title>
<style>{style}</style>
<header class="about">
<h1>Training report: {title}</h1>
<p>{about}</p>
</header>
<div class="app">Loading…</div>
<noscript>{headlines}</noscript>
{data}
<script>{code}</script>
</html>
"""


def page_of(board: Board, names: Sequence[str], project: str = "") -> str:
    """Return the HTML of a report on these runs, headed by the name of the project, or by the folder of the runs."""
    rows = sum(series["rows"] for name in names for series in board.run(board.logged_run(name))["series"])
    columns = min(
        max((MAX_BYTES - len(packed_plotly()) * 4 // 3) // (BYTES_OF_CELL * max(rows, 1)), MIN_COLUMNS), MAX_COLUMNS
    )
    project = project or board.source.folder()
    while True:
        page = _page(answers_of(board, names, columns), names, project)
        if len(page) <= MAX_BYTES or columns <= MIN_COLUMNS:
            return page
        columns = max(columns // 2, MIN_COLUMNS)


def page_in(folder: Path) -> str:
    """Return the HTML of a report on the first run, in natural order, in a folder."""
    board, names = open_folders([folder])
    return page_of(board, names[:1], Path.cwd().name)  # the folder may be a temporary one


def _page(answers: Sequence[tuple[list[str], Answer]], names: Sequence[str], project: str) -> str:
    lists: dict[tuple[Any, ...], int] = {}
    texts = {"answers": json_text(pooled(answers, lists)), "lists": json_text(list(lists))}
    data = {name: gzip.compress(text.encode(), mtime=0) for name, text in texts.items()} | {"plotly": packed_plotly()}
    code = joined(modules())
    listed = next(answer["runs"] for (route, *_), answer in answers if route == "runs")
    date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(max(run["written"] for run in listed)))
    headlines = [f"{answer['run']}: {answer['headline']}" for (route, *_), answer in answers if route == "run"]
    styles = [STATIC / "style.css", OWN_STATIC / "report.css"]
    return PAGE.format(
        policy=policy(code),
        title=html.escape(", ".join(names)),
        project=html.escape(project),
        about=html.escape(
            f"What each layer did during training, and what went wrong · project {project} · last point {date} · "
            f"hookboard {metadata.version('hookboard')}"
        ),
        style="".join(path.read_text(encoding="utf-8") for path in styles),
        headlines=html.escape(" ".join(headlines)),
        data="\n".join(
            # In base64, in which no text can end the element.
            f'<script type="application/gzip" id="{name}">{base64.b64encode(content).decode()}</script>'
            for name, content in data.items()
        ),
        code=code,
    )


@cache
def packed_plotly() -> bytes:
    """Return plotly's JavaScript, gzipped."""
    return gzip.compress(PLOTLY.read_bytes(), mtime=0)


def modules() -> dict[str, str]:
    """Return the JavaScript of the tab and of the report, by name of the file."""
    files = [*STATIC.glob("*.js"), *OWN_STATIC.glob("*.js")]
    return {path.name: path.read_text(encoding="utf-8") for path in files}


def joined(sources: Mapping[str, str]) -> str:
    """Return modules as one script, those first that others import: a page from a file cannot import a module.

    >>> print(joined({"report.js": 'import { one } from "./a.js";', "a.js": "export const one = 1;"}))
    "use strict";
    const modules = {};
    modules["a.js"] = (() => {
    const one = 1;
    return { one };
    })();
    modules["report.js"] = (() => {
    const { one } = modules["a.js"];
    return {  };
    })();
    """
    graph: dict[str, list[str]] = {}
    wanted = [FIRST]  # what it does not import is left out
    while wanted:
        name = wanted.pop()
        if name not in graph:
            graph[name] = [other for _, other in IMPORT.findall(sources[name])]
            wanted += graph[name]
    pieces = ['"use strict";', "const modules = {};"]
    for name in TopologicalSorter(graph).static_order():  # modules may not import each other
        offered = ", ".join(exported for _, exported in EXPORT.findall(sources[name]))
        code = EXPORT.sub(r"\1 \2", IMPORT.sub(r'const { \1 } = modules["\2"];', sources[name])).strip()
        pieces.append(f'modules["{name}"] = (() => {{\n{code}\nreturn {{ {offered} }};\n}})();')
    return "\n".join(pieces)


def policy(code: str) -> str:
    """Return the content security policy: nothing is loaded, and only this script and what it starts may run."""
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}' 'strict-dynamic'; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
