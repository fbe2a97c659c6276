"""A real TensorBoard and a real Chromium: what the tests of the page look at."""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager
from urllib.parse import quote, unquote

import pytest

PREFIX = "/behind/a/proxy"

SECOND = 1000

PATIENCE = 40 * SECOND
"""How long to wait for the page: the machine may be busy with other tests."""


def path_of_chromium():
    """The path of Chromium; the test is skipped where there is none."""
    names = [os.environ.get("CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome"]
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no Chromium: set CHROMIUM to its path, or put chromium on the PATH")
    return found


def require_entry_point():
    names = [point.name for point in importlib.metadata.entry_points(group="tensorboard_plugins")]
    if "hookboard" not in names:
        pytest.skip("TensorBoard does not know of hookboard here: install it again (`pip install -e .`)")


@contextmanager
def tensorboard(logdir, *more):
    """TensorBoard behind a path prefix; its address."""
    options = ["--port=0", "--host=127.0.0.1", f"--path_prefix={PREFIX}", "--reload_interval=1", *more]
    command = [sys.executable, "-m", "tensorboard.main", f"--logdir={logdir}", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        said = []
        for line in process.stderr:
            said.append(line)
            if address := re.search(r"http://\S+", line.split("TensorBoard")[-1]):
                break
        else:
            pytest.fail(f"TensorBoard did not start: {''.join(said)}")
        threading.Thread(target=process.stderr.read, daemon=True).start()  # a full pipe would stop it
        try:
            yield address.group().rstrip("/") + "/"
        finally:
            process.terminate()
            process.wait(20)


class Tab:
    """The tab Hookboard in a page of TensorBoard at this address."""

    def __init__(self, browser, address, size=(1440, 900), state=None, **options):
        self.address = address.rstrip("/")
        self.context = browser.new_context(viewport={"width": size[0], "height": size[1]}, **options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.faults = []
        self.requests = []
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        self.page.on("dialog", self._asked)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(f"{address}#{hash_of(state or {})}")
        self.frame = self.frame_of(self.page)
        self.wait()

    def frame_of(self, page):
        """What shows the tab."""
        return page.frame_locator("iframe")

    def _heard(self, message):
        address = message.location.get("url", "")
        # TensorBoard's own page has errors of its own behind a prefix; what is asked in vain is answered 4xx.
        is_ours = "hookboard" in address or "Content Security" in message.text
        if message.type in ("error", "warning") and is_ours and "run=gone" not in address:
            self.faults.append(f"{message.type}: {message.text} at {address}")

    def _asked(self, dialog):
        self.faults.append(f"a dialog: {dialog.message}")
        dialog.dismiss()

    def wait(self):
        self.frame.locator(".app:not([aria-busy]) .name").first.wait_for()

    def show(self, **state):
        """Show a state, as a link does."""
        # The page is busy from the moment it hears of it, which on a slow machine is much later.
        heard = """hash => new Promise((done) => {
            const before = location.href;
            addEventListener("hashchange", done, { once: true });
            location.hash = hash;
            if (location.href === before) done();
        })"""
        self.page.evaluate(heard, hash_of(state))
        self.wait()

    def find(self, selector, **options):
        return self.frame.locator(selector, **options)

    def box(self, selector):
        """Where the first element is that a selector finds; waits while the page is being drawn again."""
        found = []
        # It is asked once: the page may be drawn again right after, which it is a moment after a change of its size.
        self.until(lambda: found.append(self.find(selector).first.bounding_box()) or found[-1] is not None)
        return found[-1]

    def until(self, holds):
        """Wait until a condition holds: the page is drawn again a moment after it has changed."""
        for _ in range(PATIENCE // 50):
            if holds():
                return
            self.page.wait_for_timeout(50)
        assert holds()

    @property
    def rows(self):
        """The full names of the rows, from top to bottom."""
        return self.find(".name").evaluate_all("all => all.map((one) => one.title.split('\\n')[0])")

    @property
    def traces(self):
        """What is plotted, by name: numbers that are not finite are strings."""
        read = "gd => JSON.stringify(gd.data.map(({ name, z, x, y }) => ({ name, z, x, y })))"
        return {trace.pop("name"): trace for trace in json.loads(self.find("#hookboard-plot").evaluate(read))}

    @property
    def state(self):
        """What the address says."""
        pairs = re.findall(r"&p\.hookboard\.(\w+)=([^&]*)", self.page.url)
        return {name: unquote(value) for name, value in pairs}

    def download(self, selector):
        """The bytes of the file that a button gives."""
        with self.page.expect_download() as given:
            self.find(selector).click()
        with open(given.value.path(), "rb") as file:
            return file.read()

    def close(self):
        self.context.close()


class ReportTab(Tab):
    """A report, opened from a file, as a `Tab`, so that the tests of the tab can look at it."""

    def __init__(self, browser, path, **options):
        super().__init__(browser, f"file://{quote(str(path))}", **options)

    def frame_of(self, page):
        return page

    def _heard(self, message):
        self.faults.append(f"{message.type}: {message.text}")


def hash_of(state):
    return "hookboard" + "".join(f"&p.hookboard.{name}={quote(str(value), safe='')}" for name, value in state.items())
