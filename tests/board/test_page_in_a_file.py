"""A report in a real browser. Some tests of the tab run against it too."""

import json
import re
from importlib.metadata import version

import pytest
from board import test_page, test_page_runs, test_page_use
from board.browser import ReportTab
from board.logs import histogram, scalars, write
from board.runs import NASTY
from board.sick_logs import SICK, VERDICTS, write_deep, write_foreign

from hookboard.board import plugin
from hookboard.board.board import json_text
from hookboard.board.folders import open_folders
from hookboard.board.one_file import page_of

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect

pytestmark = pytest.mark.browser

RUNS = ["sick", "twin", "old", "logged", "young", "zoo", "whole", "tall", "without_rows", "drawn", "drawn_too"]

IN_A_REPORT = [
    test_page.test_the_sick_layer_is_seen_without_a_click,
    test_page.test_blocks_are_folded_except_those_with_a_verdict,
    test_page.test_cells_are_what_was_logged,
    test_page.test_worst_first_brings_the_sick_layer_to_the_top,
    test_page.test_layers_are_filtered_by_patterns_and_types,
    test_page.test_the_depth_view_shows_both_directions_at_a_step,
    test_page.test_a_layer_shows_what_it_is_and_its_course_among_its_kind,
    test_page_runs.test_a_histogram_shows_the_shares_that_were_counted,
    test_page_runs.test_of_two_runs_only_the_rows_of_both_are_compared_and_that_is_said,
    test_page_runs.test_two_stages_of_a_run_are_compared_in_one_map,
    test_page_use.test_what_each_view_shows_can_be_saved_as_csv,
    test_page_use.test_views_can_be_saved_as_pictures_with_their_alarms,
    test_page_use.test_back_returns_to_what_was_shown_before_and_forward_again,
    test_page_use.test_the_page_of_the_model_itself_is_opened_by_a_click_by_a_link_and_by_the_keyboard,
    test_page_use.test_a_link_to_a_run_that_is_gone_says_so,
    test_page_use.test_foreign_names_are_shown_as_text,
    test_page_use.test_the_loss_stands_above_the_map_at_the_steps_of_its_columns,
]
"""Tests of the tab for each kind of answer: the views are the same, and where their numbers come from is another."""

globals().update({test.__name__: test for test in IN_A_REPORT})


@pytest.fixture(scope="session")
def page_file(page_logs, tmp_path_factory):
    """A report of the runs that the tests of the tab look at, with all digits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plugin, "DIGITS", 17)
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
    opened_tab.show(run="sick")
    yield opened_tab
    assert opened_tab.faults == []
    assert {url.partition(":")[0] for url in opened_tab.requests} <= {"file", "blob", "data"}


def asked(tab, route, **parameters):
    """What the page hears when it asks; the modules are global in a report."""
    return tab.page.evaluate("([route, given]) => modules['data.js'].ask(route, given)", [route, parameters])


def written(answer):
    """An answer as it is in JSON."""
    return json.loads(json_text(answer))


def test_its_answers_are_those_of_the_server(tab, page_logs):
    board, names = open_folders([page_logs / name for name in RUNS])
    sick, twin, drawn = map(board.logged_run, ("sick", "twin", "drawn"))
    assert {run["name"] for run in asked(tab, "runs")["runs"]} == {*names}
    assert asked(tab, "run", run="sick") == written(board.run(sick))
    for layer in (SICK, "head"):
        assert asked(tab, "layer", run="sick", layer=layer) == written(board.layer(sick, layer))
    against = written(board.map(sick, "health/gradient_rms", 400, (twin, "health/gradient_rms")))
    assert asked(tab, "map", run="sick", series="health/gradient_rms", against="twin") == against
    assert asked(tab, "histogram", run="drawn", tag="activations/net.0") == board.histogram(drawn, "activations/net.0")


def test_histograms_and_the_last_pictures_are_inside(tab):
    tab.show(run="drawn", layer="net.0")
    expect(tab.find(".picture img").first).to_have_attribute("src", re.compile("^data:image/png;base64,"))
    assert tab.find(".picture img").first.evaluate("one => one.decode().then(() => one.naturalWidth)") > 0
    expect(tab.find("h3", has_text="Histograms over steps")).to_be_visible()


@pytest.fixture
def opened(chromium, tmp_path):
    """Opens a report of a run."""
    tabs = []

    def open_report(folder, **options):
        path = tmp_path / "report.html"
        path.write_text(page_of(*open_folders([folder])), encoding="utf-8")
        tabs.append(ReportTab(chromium, path, **options))
        return tabs[-1]

    yield open_report
    for tab in tabs:
        tab.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_as_dark_as_the_system(chromium, page_file, scheme):
    tab = ReportTab(chromium, page_file, color_scheme=scheme)
    expect(tab.find(".about p")).to_contain_text(f"hookboard {version('hookboard')}")
    shade = {"light": "rgb(255, 255, 255)", "dark": "rgb(48, 48, 48)"}[scheme]
    expect(tab.find(".view")).to_have_css("background-color", shade)
    tab.close()


def test_on_paper_it_is_a_summary(chromium, page_file):
    tab = ReportTab(chromium, page_file, color_scheme="dark", state={"run": "sick"})
    tab.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    tab.page.emulate_media(media="print")
    tab.page.set_viewport_size({"width": 700, "height": 1000})
    for selector, is_shown in ((".toolbar", False), (".tools", False), (".about", True), (".card", True)):
        assert tab.find(selector).first.is_visible() == is_shown, selector
    box, field = tab.box(".view"), tab.box(".field")
    assert box["width"] <= 700
    assert field["x"] + field["width"] <= 700
    expect(tab.find(".card").first).to_have_css("background-color", "rgb(255, 255, 255)")
    tab.close()


def test_the_sick_layer_of_a_deep_model_is_seen_when_the_run_is_opened(opened, tmp_path):
    write_deep(tmp_path / "deep", 100, [{**VERDICTS[0], "module": "encoder.layers.70.linear1"}])
    tab = opened(tmp_path / "deep", size=(390, 900))
    grid, row = tab.box(".grid"), tab.box(".name.alarm")
    assert grid["y"] < row["y"] < grid["y"] + grid["height"] - 34  # the axis
    assert tab.page.evaluate("scrollY") == 0


def test_numbers_that_are_alike_have_labels_that_differ(opened, tmp_path):
    numbers = [scalars(step, {"activation_mean/a": 149.1 + step / 1000, "activation_min/a": -0.5}) for step in range(3)]
    write(tmp_path / "run", [*numbers, histogram(0, "activations/a", [-50.02, -50.01, -50.0], [1, 2])])
    tab = opened(tmp_path / "run", state={"layer": "a"})
    expect(tab.find(".side .js-plotly-plot")).to_have_count(3)
    read = "all => all.map((gd) => gd.layout.yaxis.ticktext)"
    for texts in tab.find(".side .js-plotly-plot").evaluate_all(read):
        assert len({*texts}) == len(texts) > 1


def test_names_that_look_like_html_do_nothing(opened, tmp_path):
    name = "<script>alert(1)<\\script> & \"'"
    write_foreign(tmp_path / "logs" / name, [*NASTY, "</script><script>alert(3)</script>", "__proto__", "$", "{title}"])
    tab = opened(tmp_path / "logs" / name)
    assert tab.page.title().startswith(f"{name} \N{MIDDLE DOT} {tmp_path.name}/logs")
    expect(tab.find("h1")).to_have_text(f"Training report: {name}")
    for layer in ("</script><script>alert(3)</script>", "__proto__", "$"):
        tab.show(layer=layer)
        expect(tab.find(".side h2")).to_have_text(layer)
    assert tab.faults == []


def test_nothing_else_may_run_or_be_loaded(chromium, page_file):
    tab = ReportTab(chromium, page_file)
    tab.page.evaluate("""document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='window.isHarmed = 1'>")""")
    tab.page.wait_for_timeout(200)
    assert tab.page.evaluate("window.isHarmed") is None
    assert tab.page.evaluate("fetch('http://127.0.0.1:9/').then(() => 'loaded', () => 'refused')") == "refused"
    assert all("Content Security" in fault for fault in tab.faults)
    assert len(tab.faults) >= 2
    tab.close()
