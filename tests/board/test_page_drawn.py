"""The tab in TensorBoard, in a real browser: histograms, pictures, runs with unlike rows, and the slow loader."""

import numpy as np
import pytest
from board.drawn_logs import COUNTS, EDGES, WIDTHS

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect

pytestmark = pytest.mark.browser


def test_a_histogram_shows_the_shares_that_were_counted(tab):
    tab.show(run="drawn", layer="net.0")
    expect(tab.find(".side .heatmaplayer image")).to_have_count(1)
    read = (
        "all => all.map((gd) => gd.data[0]).filter((one) => one.type === 'heatmap').map(({ x, y, z }) => ({ x, y, z }))"
    )
    (trace,) = tab.find(".side .js-plotly-plot").evaluate_all(read)
    assert trace["x"] == list(COUNTS)
    centres, shares = np.array(trace["y"]), np.array(trace["z"])
    for column, counts in enumerate(COUNTS.values()):
        for low, high, count in zip(EDGES, EDGES[1:], counts, strict=False):
            found = shares[(low < centres) & (centres < high), column].sum()
            assert found == pytest.approx(count / sum(counts), abs=0.09)  # one bin may lie over an edge


@pytest.mark.parametrize(("step", "shown"), [(0, 0), (10, 0), (20, 20)])
def test_the_picture_is_the_last_one_before_the_step(tab, step, shown):
    tab.show(run="drawn", layer="net.0", step=step)
    figure = tab.find(".side figure.picture")
    expect(figure).to_contain_text(f"at step {shown}")
    figure.scroll_into_view_if_needed()
    tab.page.wait_for_timeout(300)
    assert figure.locator("img").evaluate("img => img.decode().then(() => img.naturalWidth)") == WIDTHS[shown]


def test_of_two_runs_only_the_rows_of_both_are_compared_and_that_is_said(tab):
    tab.show(run="drawn", against="drawn_too")
    assert tab.rows == ["net.0"]
    expect(tab.find(".notice").first).to_contain_text("1 row exists in only one run")


def test_two_stages_of_a_run_are_compared_in_one_map(tab):
    tab.show(run="drawn", series="train/activation/std")
    tab.find("#hookboard-against").select_option(label="validate of this run")
    expect(tab.find(".what")).to_have_text("train as a multiple of validate")
    tab.wait()
    assert tab.rows == ["net.1"]
    assert tab.traces["values"]["z"] == [[None, None, pytest.approx(np.log10(21 / 7))]]
    expect(tab.find(".notice").first).to_contain_text("1 row exists in only one stage")
    lines = tab.download(".view button:has-text('CSV')").decode().splitlines()
    assert lines == ["layer,step,train,validate", "net.1,0,1,", "net.1,10,11,", "net.1,20,21,7"]


def test_show_has_each_statistic_once_in_groups_and_the_stage_is_a_choice_of_its_own(tab):
    tab.show(run="drawn")
    groups = "list => [...list.children].map((group) => [group.label, [...group.children].map(({ text }) => text)])"
    assert tab.find("#hookboard-what").evaluate(groups) == [
        ["activations", ["activation std", "activation mean"]],
        ["gradients", ["gradient std"]],
    ]
    tab.find("#hookboard-stage").select_option(label="validate")
    tab.until(lambda: tab.state["series"] == "validate/activation/std")
    tab.wait()
    assert tab.rows == ["net.1"]
    tab.find("#hookboard-what").select_option(label="gradient std")
    tab.until(lambda: tab.state["series"] == "train/gradient/std")  # which validation does not have
    tab.show(run="sick")
    expect(tab.find("#hookboard-stage")).to_be_hidden()
