from urllib.parse import urlsplit

import numpy as np
import pytest
from board import logs, runs
from board.browser import Tab, path_of_chromium, require_entry_point, tensorboard
from board.sick_logs import (
    STEPS,
    layers_of,
    sick_values,
    write_deep,
    write_drawn,
    write_fall,
    write_foreign,
    write_rooted,
    write_rowless,
    write_run,
)


@pytest.fixture(scope="session")
def log_directory(tmp_path_factory):
    """All runs of runs.py."""
    folder = tmp_path_factory.mktemp("board")
    for name, events in runs.RUNS.items():
        logs.write(folder / name, events)
    return folder


@pytest.fixture(scope="session")
def slow_board(log_directory):
    with logs.slow(log_directory) as board:
        yield board


@pytest.fixture(scope="session")
def fast_board(log_directory):
    with logs.fast(log_directory, len(runs.RUNS)) as board:
        yield board


@pytest.fixture(params=["slow", "fast"])
def board(request):
    """The plugin on the log directory, by each of TensorBoard's loaders."""
    return request.getfixturevalue(f"{request.param}_board")


@pytest.fixture(scope="session")
def page_logs(tmp_path_factory):
    """The log directory that the page shows."""
    folder = tmp_path_factory.mktemp("logs")
    write_run(folder / "sick")
    write_run(folder / "twin", seed=1, shows="gradient_rms")
    write_run(folder / "old", has_record=False)
    write_run(folder / "logged", is_judged=False)
    write_run(folder / "young", has_record=False, steps=STEPS[:10])
    write_foreign(folder / "zoo", runs.NASTY)
    write_rooted(folder / "whole")
    write_deep(folder / "tall", 50)
    write_rowless(folder / "without_rows")
    write_fall(folder / "fall")
    write_drawn(folder / "drawn", ["net.0", "net.1"])
    write_drawn(folder / "drawn_too", ["net.0"])
    return folder


@pytest.fixture(scope="module")  # its event loop would be in the way of other tests
def chromium():
    """A browser of playwright; the test is skipped where there is none."""
    reason = "playwright is not installed: see the group `test` in pyproject.toml"
    sync_api = pytest.importorskip("playwright.sync_api", reason=reason)
    path = path_of_chromium()
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def page_address(page_logs):
    require_entry_point()
    with tensorboard(page_logs) as address:
        yield address


@pytest.fixture(scope="module")
def opened_tab(chromium, page_address):
    tab = Tab(chromium, page_address)
    yield tab
    tab.close()


@pytest.fixture
def tab(opened_tab):
    """The tab, as it opens; nothing may go wrong in it, and it asks no other host."""
    opened_tab.page.set_viewport_size({"width": 1440, "height": 900})
    opened_tab.show()
    yield opened_tab
    assert opened_tab.faults == []
    assert {urlsplit(url).netloc for url in opened_tab.requests} - {urlsplit(opened_tab.address).netloc, ""} == set()


@pytest.fixture(scope="session")
def values():
    """The RMS of outputs and of gradients of the run `sick`, as they are stored: in float32."""
    return [rows.astype(np.float32).astype(np.float64) for rows in sick_values(layers_of())]


@pytest.fixture(scope="session", name="logs")  # its file has a module of that name
def report_logs(tmp_path_factory):
    """A sick run, one with hostile names, one that HealthMonitor did not watch, and two folders that are no runs."""
    folder = tmp_path_factory.mktemp("report") / "logs"
    write_run(folder / "sick")
    logs.write(
        folder / "sick", [logs.scalars(step, {"train/loss": 2.0 - step / 118, "val_loss": 9.0}) for step in STEPS]
    )
    write_foreign(folder / "zoo", runs.NASTY)
    write_run(folder / "a_loggers", is_judged=False)
    logs.write(folder / "theirs", runs.RUNS["theirs"])
    (folder / "empty").mkdir()
    return folder
