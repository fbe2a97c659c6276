"""What the tab in TensorBoard takes: time to the first map of a run, to later ones, and memory.

    python benchmarks/board.py                             300 layers, 12 statistics, 2,000 steps, 3 runs
    python benchmarks/board.py --runs 1 --steps 500        smaller
    python benchmarks/board.py --slow                      with TensorBoard's slow loader, which takes far longer

It writes event files as hookboard does, one event for each step, starts TensorBoard on them, waits until all of them
are loaded, and times what the page asks for, from request to numbers. TensorBoard keeps 1,000 points
of each tag. Memory is that of TensorBoard's Python process; the fast loader keeps its data in another one.
Where there is Chromium, it also opens the tab there, with an empty cache: "in all" is from opening TensorBoard to the
drawn map, and "the tab" is the part that TensorBoard's own page has no share in.
"""

import argparse
import contextlib
import gzip
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event

from hookboard.board.logged_run import SCALES
from hookboard.writers.tensorboard import QuickRecordWriter

SENT = "() => performance.getEntriesByType('resource').reduce((sum, one) => sum + one.transferSize, 0)"
"""JavaScript: how many bytes a frame has loaded."""

ONE = b"\x15\x00\x00\x80\x3f"  # how an event stores the scalar 1.0


def write(path: Path, layers: int, statistics: int, steps: int, seed: int) -> None:
    """One run, quickly: each event is the first one with other numbers in the same places."""
    tags = [f"activation_{name}/blocks.{i}.mlp.linear" for name in list(SCALES)[:statistics] for i in range(layers)]
    event = Event()
    for tag in tags:
        event.summary.value.add(tag=tag, simple_value=1.0)
    summary = np.frombuffer(event.SerializeToString(), np.uint8).copy()
    places = [match.start() + 1 for match in re.finditer(re.escape(ONE), summary.tobytes())]
    assert len(places) == len(tags)
    at = np.asarray(places)[:, None] + np.arange(4)
    random = np.random.default_rng(seed)
    path.mkdir(parents=True)
    with (path / "events.out.tfevents.1.benchmark").open("wb") as file:
        writer = QuickRecordWriter(file)
        writer.write(Event(wall_time=1.0, file_version="brain.Event:2").SerializeToString())
        for step in range(steps):
            values = np.exp(random.standard_normal(len(tags))).astype("<f4")
            values[random.integers(len(tags))] = np.nan
            summary[at] = values.view(np.uint8).reshape(-1, 4)
            writer.write(Event(wall_time=2.0 + step, step=step).SerializeToString() + summary.tobytes())


@contextlib.contextmanager
def tensorboard(logdir: str, loader: str) -> Iterator[tuple[str, int]]:
    """A TensorBoard: its address and the id of its process."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", logdir, "--port", "0", "--load_fast", loader]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if found := re.search(r"http://\S+", line):
                    yield found[0], process.pid
                    break
        finally:
            process.kill()


def ask(base: str, path: str, **given: Any) -> tuple[Any, float, int]:
    """The answer, how long it took in seconds, its size in bytes as sent."""
    start = time.perf_counter()
    with urlopen(Request(f"{base}{path}?{urlencode(given)}", headers={"Accept-Encoding": "gzip"})) as response:
        content = response.read()
    return json.loads(gzip.decompress(content)), time.perf_counter() - start, len(content)


def memory_of(process: int) -> float:
    """In MB."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]  # Linux has that line


def wait(base: str, runs: int, last: int) -> None:
    while True:
        found = ask(base, "runs")[0]["runs"]
        if len(found) == runs and all(run["step"] == last for run in found):
            return
        time.sleep(1)


def measure(base: str, process: int, names: list[str]) -> None:
    def report(what: str, path: str, **given: Any) -> Any:
        answer, seconds, size = ask(base, path, **given)
        print(f"{what:44} {seconds:6.2f} s {size / 1e6:7.2f} MB, memory {memory_of(process):6.0f} MB", flush=True)
        return answer

    report("runs", "runs")
    run = report("run", "run", run=names[0])
    first = run["series"][0]["id"]
    report("first map", "map", run=names[0], series=first)
    for _ in range(3):
        report("the same again", "map", run=names[0], series=first)
    report("the same, against a second run", "map", run=names[0], series=first, against=names[-1])
    report("the same again", "map", run=names[0], series=first, against=names[-1])
    layer = run["layers"][0]["name"]
    report("a layer", "layer", run=names[0], layer=layer)
    for name in names:
        for series in run["series"]:
            ask(base, "map", run=name, series=series["id"])
    report("after all maps of all runs", "map", run=names[0], series=first)


def draw(address: str, name: str) -> None:
    """Open the tab in Chromium, each time with an empty cache."""
    path = shutil.which(os.environ.get("CHROMIUM", "chromium"))
    if path is None or importlib.util.find_spec("playwright") is None:
        print("no Chromium, or no playwright: the tab is not drawn")
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        for attempt in ("first", "again", "again"):
            page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
            start = time.perf_counter()
            page.goto(f"{address}#hookboard&p.hookboard.run={name}")
            rows = page.frame_locator("iframe").locator(".app:not([aria-busy]) .name")
            rows.first.wait_for()
            seconds = time.perf_counter() - start
            tab = rows.first.evaluate("() => performance.now()") / 1000
            size = rows.first.evaluate(SENT) / 1e6
            what = f"drawn in Chromium, {attempt}"
            print(f"{what:44} {tab:6.2f} s {size:7.2f} MB, in all {seconds:.2f} s", flush=True)
            page.context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("layers", 300), ("statistics", 12), ("steps", 2000), ("runs", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--slow", action="store_true", help="with TensorBoard's slow loader")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        names = [f"run_{number}" for number in range(given.runs)]
        start = time.perf_counter()
        for seed, name in enumerate(names):
            write(Path(folder) / name, given.layers, given.statistics, given.steps, seed)
        size = sum(path.stat().st_size for path in Path(folder).rglob("events*"))
        print(f"{size / 1e6:.0f} MB written in {time.perf_counter() - start:.0f} s")
        with tensorboard(folder, "false" if given.slow else "true") as (address, process):
            base = f"{address}data/plugin/hookboard/"
            start = time.perf_counter()
            wait(base, given.runs, given.steps - 1)
            print(f"loaded in {time.perf_counter() - start:.0f} s, memory {memory_of(process):.0f} MB")
            draw(address, names[0])
            measure(base, process, names)


if __name__ == "__main__":
    main()
