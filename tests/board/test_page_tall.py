"""The tab in TensorBoard, in a real browser: a model with more layers than fit, and what verdicts name in it."""

import re

import pytest

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect

pytestmark = pytest.mark.browser


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
