"""A report in a real browser. The tests of the tab that need no server run against it too."""

import gzip
import json
import re

import pytest
from board import test_page, test_page_drawn, test_page_use
from board.logs import histogram, scalars, write
from board.pages import ReportTab
from board.runs import NASTY
from board.sick_logs import SICK, VERDICTS, write_deep, write_foreign

from hookboard.board import answers
from hookboard.board.board import packed_json
from hookboard.board.folders import open_folders
from hookboard.board.one_file import page_of

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect

pytestmark = pytest.mark.browser

RUNS = ["sick", "twin", "old", "logged", "young", "zoo", "whole", "long", "unlike", "tall", "without_rows"]
RUNS += ["drawn", "drawn_too"]

NEED_A_SERVER = {
    "test_the_picture_is_the_last_one_before_the_step",  # a report has only the last one
    "test_the_slow_loader_shows_the_sick_layer_too",
    "test_a_link_shows_a_fresh_browser_the_same",  # it looks for the frame in TensorBoard's page
    "test_dark_mode_is_that_of_tensorboard",
    "test_the_heading_of_the_loss_has_its_first_and_last_value_finite_or_not",  # it imports a module by its address
    "test_a_run_that_grows_is_followed_and_what_is_seen_stays",
    "test_an_empty_log_directory_says_what_to_do",
}
"""Tests of what only TensorBoard has."""

globals().update(
    {
        name: test
        for module in (test_page, test_page_drawn, test_page_use)
        for name, test in vars(module).items()
        if name.startswith("test_") and name not in NEED_A_SERVER
    }
)


@pytest.fixture(scope="session")
def page_file(page_logs, tmp_path_factory):
    """A report of the runs that the tests of the tab look at, with all digits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answers, "DIGITS", 17)
        path = tmp_path_factory.mktemp("page") / "report #1.html"
        board, _ = open_folders([page_logs / name for name in RUNS])
        path.write_text(page_of(board, RUNS), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def opened_tab(chromium, page_file):
    tab = ReportTab(chromium, page_file)
    yield tab
    tab.close()


@pytest.fixture
def tab(opened_tab):
    opened_tab.page.set_viewport_size({"width": 1440, "height": 900})
    opened_tab.show()
    yield opened_tab
    assert opened_tab.faults == []
    assert {url.partition(":")[0] for url in opened_tab.requests} <= {"file", "blob", "data"}


def asked(tab, route, **parameters):
    """What the page hears when it asks; the modules are global in a report."""
    return tab.page.evaluate("([route, given]) => modules['data.js'].ask(route, given)", [route, parameters])


def written(answer):
    """An answer as it is in JSON."""
    return json.loads(gzip.decompress(packed_json(answer)))


def test_its_answers_are_those_of_the_server(tab, page_logs):
    board, names = open_folders([page_logs / name for name in RUNS])
    sick, twin, drawn = map(board.logged_run, ("sick", "twin", "drawn"))
    assert {run["name"] for run in asked(tab, "runs")["runs"]} == {*names}
    assert asked(tab, "run", run="sick") == written(board.run(sick))
    for layer in (SICK, "head"):
        assert asked(tab, "layer", run="sick", layer=layer) == written(board.layer(sick, layer, 400, True))
    against = written(board.map(sick, "health/gradient_rms", 400, (twin, "health/gradient_rms")))
    assert asked(tab, "map", run="sick", series="health/gradient_rms", against="twin") == against
    assert asked(tab, "histogram", run="drawn", tag="activations/net.0") == board.histogram(drawn, "activations/net.0")


def test_histograms_and_the_last_pictures_are_inside(tab):
    tab.show(run="drawn", layer="net.0")
    expect(tab.find(".picture img").first).to_have_attribute("src", re.compile("^data:image/png;base64,"))
    assert tab.find(".picture img").first.evaluate("one => one.decode().then(() => one.naturalWidth)") > 0
    expect(tab.find("h3", has_text="Histograms over steps")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_as_dark_as_the_system(chromium, page_file, scheme):
    tab = ReportTab(chromium, page_file, color_scheme=scheme)
    shade = {"light": "rgb(255, 255, 255)", "dark": "rgb(48, 48, 48)"}[scheme]
    expect(tab.find(".view")).to_have_css("background-color", shade)
    tab.close()


def test_a_phone_needs_no_scrolling_to_the_side(tab):
    tab.page.set_viewport_size({"width": 390, "height": 844})
    tab.wait()
    assert tab.page.evaluate("document.documentElement.scrollWidth") == 390
    expect(tab.find(".card").first).to_be_in_viewport()


def test_on_paper_it_is_a_summary(chromium, page_file):
    tab = ReportTab(chromium, page_file, color_scheme="dark", state={"run": "sick"})
    tab.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    tab.page.emulate_media(media="print")
    tab.page.set_viewport_size({"width": 700, "height": 1000})
    for selector, is_shown in ((".toolbar", False), (".tools", False), (".paper", True), (".card", True)):
        assert tab.find(selector).first.is_visible() == is_shown, selector
    box, field = tab.box(".view"), tab.box(".field")
    assert box["width"] <= 700
    assert field["x"] + field["width"] <= 700
    expect(tab.find(".card").first).to_have_css("background-color", "rgb(255, 255, 255)")
    tab.close()


@pytest.mark.parametrize("width", [1440, 390])
def test_the_sick_layer_of_a_deep_model_is_seen_when_the_run_is_opened(chromium, tmp_path, width):
    sick = "encoder.layers.70.linear1"
    write_deep(tmp_path / "deep", 100, [{**VERDICTS[0], "module": sick}])
    (tmp_path / "report.html").write_text(page_of(*open_folders([tmp_path / "deep"])), encoding="utf-8")
    tab = ReportTab(chromium, tmp_path / "report.html", size=(width, 900))
    grid, row = tab.box(".grid"), tab.box(".name.alarm")
    assert grid["y"] < row["y"] < grid["y"] + grid["height"] - 34  # the axis
    assert tab.page.evaluate("scrollY") == 0
    tab.close()


def test_numbers_that_are_alike_have_labels_that_differ(chromium, tmp_path):
    numbers = [scalars(step, {"activation_mean/a": 149.1 + step / 1000, "activation_min/a": -0.5}) for step in range(3)]
    write(tmp_path / "run", [*numbers, histogram(0, "activations/a", [-50.02, -50.01, -50.0], [1, 2])])
    (tmp_path / "report.html").write_text(page_of(*open_folders([tmp_path / "run"])), encoding="utf-8")
    tab = ReportTab(chromium, tmp_path / "report.html", state={"layer": "a"})
    expect(tab.find(".side .js-plotly-plot")).to_have_count(3)
    read = "all => all.map((gd) => gd.layout.yaxis.ticktext)"
    for texts in tab.find(".side .js-plotly-plot").evaluate_all(read):
        assert len({*texts}) == len(texts) > 1
    tab.close()


def test_names_that_look_like_html_do_nothing(chromium, tmp_path):
    name = "<script>alert(1)<\\script> & \"'"
    write_foreign(tmp_path / "logs" / name, [*NASTY, "</script><script>alert(3)</script>", "__proto__", "$", "{title}"])
    board, names = open_folders([tmp_path / "logs" / name])
    (tmp_path / "report.html").write_text(page_of(board, names), encoding="utf-8")
    tab = ReportTab(chromium, tmp_path / "report.html")
    assert tab.page.title() == f"{name} \N{MIDDLE DOT} Hookboard"
    for layer in ("</script><script>alert(3)</script>", "__proto__", "$"):
        tab.show(layer=layer)
        expect(tab.find(".side h2")).to_have_text(layer)
    assert tab.faults == []
    tab.close()


def test_nothing_else_may_run_or_be_loaded(chromium, page_file):
    tab = ReportTab(chromium, page_file)
    tab.page.evaluate("""document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='window.isHarmed = 1'>")""")
    tab.page.wait_for_timeout(200)
    assert tab.page.evaluate("window.isHarmed") is None
    assert tab.page.evaluate("fetch('http://127.0.0.1:9/').then(() => 'loaded', () => 'refused')") == "refused"
    assert all("Content Security" in fault for fault in tab.faults)
    assert len(tab.faults) >= 2
    tab.close()
