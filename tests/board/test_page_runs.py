"""The tab in TensorBoard, in a real browser: histograms, pictures, unlike runs, and more layers than fit."""

import re

import numpy as np
import pytest
from board.sick_logs import COUNTS, EDGES, WIDTHS

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


def row(name):
    return f".name[title^='{name}\\a']"


def ends(title):
    """The numbers of the first and the last layer of a row or a band."""
    numbers = re.findall(r"net\.(\d+)", title)
    return int(numbers[0]), int(numbers[-1])


@pytest.mark.parametrize("view", ["map", "depth"])
def test_all_rows_of_302_layers_are_in_sight_merged_to_bands(tab, view):
    tab.show(run="fall", view=view)
    for at in (tab.find(".name").first, tab.find(".name").last):
        expect(at).to_be_in_viewport(ratio=1)
    grid = tab.find(".grid").evaluate("grid => [grid.scrollHeight, grid.clientHeight]")
    assert grid[0] <= grid[1]
    spans = [ends(title) for title in tab.rows[1:]]
    assert [i for first, last in spans for i in range(first, last + 1)] == list(range(302))
    assert {"net.100", "net.101"} <= {*tab.rows}  # with a verdict, or named by one


def test_a_band_names_its_rows_and_shows_the_worst(tab):
    tab.show(run="fall")
    box, height = tab.box(".field"), tab.box(".name")["height"]
    at = next(i for i, title in enumerate(tab.rows) if i and ends(title)[0] <= 295 < ends(title)[1])
    first, last = ends(tab.rows[at])
    tab.page.mouse.move(box["x"] + 9, box["y"] + height * (at + 0.5))
    for i in (first, first + 1):
        expect(tab.find(".tip")).to_contain_text(f"net.{i}")
    expect(tab.find(".tip")).to_contain_text(f"the worst of its {last - first + 1} rows: net.{last}")


def test_a_click_on_a_band_shows_every_row_there_and_back_the_bands(tab):
    tab.show(run="fall")
    bands = tab.rows
    band = next(title for title in bands if " \N{HORIZONTAL ELLIPSIS} " in title and ends(title)[0] > 200)
    tab.find(row(band)).click()
    tab.wait()
    assert len(tab.rows) == 303
    expect(tab.find(row(f"net.{ends(band)[0]}"))).to_be_in_viewport(ratio=1)
    tab.page.go_back()
    tab.until(lambda: tab.rows == bands)
    tab.find("button:has-text('All rows')").click()
    tab.until(lambda: len(tab.rows) == 303)
    tab.find("button:has-text('Fit')").click()
    tab.until(lambda: tab.rows == bands)


def test_worst_first_is_by_verdict_then_by_distance_and_what_does_not_stand_out_stays_in_order(tab):
    tab.show(run="fall", sort="worst")
    fallen = [f"net.{i}" for i in range(301, 289, -1)]
    like = [f"net.{i}" for i in range(290) if i not in (100, 101)]
    assert tab.rows == ["net.100", "net.101", *fallen, *like]


def test_a_row_that_a_verdict_on_another_layer_names_is_marked_and_leads_to_it(tab):
    tab.show(run="fall")
    expect(tab.find(f"{row('net.100')} .mark")).to_have_text("\N{BLACK UP-POINTING TRIANGLE}")
    expect(tab.find(f"{row('net.101')} .mark")).to_have_text("\N{WHITE UP-POINTING TRIANGLE}")
    named = "net.101, Tanh, named by alarm: dead_units in net.100"
    expect(tab.find(row("net.101"))).to_have_attribute("aria-label", named)
    tab.find(row("net.101")).click()
    expect(tab.find(".side .card")).to_contain_text("dead_units")
    tab.wait()  # until the panel is not drawn anew
    tab.find(".side button.card").click()
    expect(tab.find(".side h2")).to_have_text("net.100")
    expect(tab.find(".side button.card")).to_have_count(0)
