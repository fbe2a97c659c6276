"""The tab in TensorBoard, in a real browser: what its views show, read from the page."""

import json

import numpy as np
import pytest
from board.sick_logs import FROZEN, PARTS, SICK, STEPS, layers_of

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect

pytestmark = pytest.mark.browser

NAMES = [name for name, _, _ in layers_of()]

ROW = NAMES.index(SICK)


def numbers(rows):
    return np.array(rows, dtype=np.float64)


def test_the_sick_layer_is_seen_without_a_click(tab):
    sick = tab.find(".name.alarm")
    expect(sick).to_have_count(1)
    expect(sick).to_be_in_viewport()
    expect(sick).to_have_attribute("aria-label", f"{SICK}, Linear, alarm: dead_units")
    row = tab.rows.index(SICK)
    shown = [cells[0] for cells in tab.traces["values"]["z"] if cells[0] is not None]
    assert tab.traces["values"]["z"][row][0] == max(shown)
    card = tab.find(".card").first
    expect(card).to_be_in_viewport()
    expect(card).to_contain_text("alarm")
    expect(card).to_contain_text("dead_units")
    expect(card).to_contain_text("Look at how this layer is initialized")


def test_blocks_are_folded_except_those_with_a_verdict(tab):
    inside = [f"encoder.layers.7.{part}" for part in PARTS]
    layers = [f"encoder.layers.{i}" for i in range(12)]
    place = layers.index("encoder.layers.7") + 1
    assert tab.rows == ["token_embedding", "encoder.layers", *layers[:place], *inside, *layers[place:], "norm", "head"]


def test_cells_are_what_was_logged(tab, values):
    tab.show(run="sick", series="train/gradient/std", modules="encoder.layers.2.** head")
    rows = tab.rows
    z = numbers(tab.traces["values"]["z"])
    for name in [f"encoder.layers.2.{part}" for part in PARTS] + ["head"]:
        np.testing.assert_allclose(z[rows.index(name)], np.log10(values[1][NAMES.index(name)]), rtol=1e-6)


def test_a_folded_block_shows_its_worst_row_and_is_opened_by_a_click(tab):
    tab.show(run="old")
    assert "encoder.layers.7.dropout" not in tab.rows
    zero = tab.traces["zero"]["z"]
    assert [all(row) for row in zero].index(True) == tab.rows.index("encoder.layers.7")
    tab.show(run="old", series="train/gradient/std")
    assert "encoder.layers.3.linear2" not in tab.rows
    broken = tab.traces["not finite"]["z"][tab.rows.index("encoder.layers.3")]
    assert [column for column, cell in enumerate(broken) if cell] == [20, 21]
    tab.find(".name[title^='encoder.layers.3\\a']").click()
    assert "encoder.layers.3.linear2" in tab.rows
    assert json.loads(tab.state["open"]) == ["encoder.layers.3"]


def test_a_frozen_layer_is_marked_in_the_map_and_on_its_page(tab):
    tab.show(run="sick")
    layer, block = FROZEN[0], FROZEN[1].rstrip(".")
    types = {name: tab.find(f".name[title^='{name}\\a'] .type").inner_text() for name in (layer, block, SICK)}
    assert types == {layer: "frozen LayerNorm", block: "frozen, 6 rows", SICK: "Linear"}
    tab.show(run="sick", layer=layer)
    expect(tab.find(".side dl")).to_contain_text("frozen")


def test_the_deviation_is_that_from_the_median_of_the_type(tab, values):
    tab.show(run="sick", how="deviation", modules="encoder.layers.5.linear1")
    kinds = [kind for _, kind, _ in layers_of()]
    like = [i for i, kind in enumerate(kinds) if kind == "Linear"]
    row = NAMES.index("encoder.layers.5.linear1")
    expected = np.log10(values[0][row] / np.median(values[0][like], axis=0))
    np.testing.assert_allclose(numbers(tab.traces["values"]["z"])[-1], expected, atol=1e-6)


def test_a_verdict_leads_to_its_row_and_step(tab):
    tab.show(run="sick", closed='["encoder.layers"]', modules="head token_embedding")
    tab.find(".card.note").click()
    tab.find(".name.here").wait_for()
    assert tab.find(".name.here").get_attribute("title").startswith("encoder.layers.7.norm2\n")
    assert (tab.state["row"], tab.state["step"]) == ("encoder.layers.7.norm2", "20")
    expect(tab.find(".cursor")).to_be_in_viewport()


@pytest.mark.parametrize("run", ["sick", "old"])
def test_worst_first_brings_the_sick_layer_to_the_top(tab, run):
    tab.show(run=run, sort="worst")
    assert SICK in tab.rows[:3]
    assert all(name.startswith("encoder.layers.7.") for name in tab.rows[:3])


def test_rows_can_be_sorted_by_change_and_by_name_with_numbers_as_numbers(tab):
    tab.show(run="sick", sort="change")
    assert {*tab.rows[-3:]} == {f"encoder.layers.7.{part}" for part in ("linear1", "dropout", "linear2")}  # constant
    tab.show(run="sick", series="health/gradient_rms", sort="change")
    assert tab.rows[0] == "encoder.layers.3.linear2"  # the only one that was not finite
    tab.find("#hookboard-sort").select_option("name")
    tab.wait()
    blocks = [name for name in tab.rows if name.startswith("encoder.layers.") and name.count(".") == 2]
    assert blocks == [f"encoder.layers.{i}" for i in range(12)]
    assert tab.rows.index("head") < tab.rows.index("norm") < tab.rows.index("token_embedding")


def test_layers_are_filtered_by_patterns_and_types(tab):
    tab.find("#hookboard-modules").fill("encoder.layers.4.** !**.linear2")
    tab.find("#hookboard-types").fill("Linear LayerNorm")
    expect(tab.find(".facts-line").first).to_contain_text("3 rows")
    assert tab.rows == ["encoder.layers.4", *(f"encoder.layers.4.{part}" for part in ("linear1", "norm1", "norm2"))]


def test_a_pattern_without_a_match_is_told_with_the_closest_names(tab):
    tab.find("#hookboard-modules").fill("encoder.layers.4.linaer1")
    expect(tab.find(".filter-error")).to_contain_text("encoder.layers.4.linaer1")
    expect(tab.find(".filter-error")).to_contain_text("encoder.layers.4.linear1")
    tab.find("#hookboard-modules").fill("")
    expect(tab.find(".filter-error")).to_have_text("")


def test_the_mouse_finds_layer_type_step_value_and_verdict(tab, values):
    box = tab.box(".field")
    height = tab.box(".name")["height"]
    column = 40
    x = box["x"] + box["width"] * (column + 0.5) / len(STEPS)
    tab.page.mouse.move(x, box["y"] + height * (tab.rows.index(SICK) + 0.5))
    tip = tab.find(".tip")
    for text in (SICK, "Linear", f"step {STEPS[column]}", "activation RMS: 9.9", "alarm: dead_units"):
        expect(tip).to_contain_text(text)


def test_a_part_of_the_steps_is_pulled_open(tab):
    box = tab.box(".field")
    tab.page.mouse.move(box["x"] + box["width"] * 10.5 / len(STEPS), box["y"] + 20)
    tab.page.mouse.down()
    tab.page.mouse.move(box["x"] + box["width"] * 20.5 / len(STEPS), box["y"] + 30, steps=3)
    tab.page.mouse.up()
    tab.find("button:has-text('All steps')").wait_for()
    assert (tab.state["from"], tab.state["to"]) == (str(STEPS[10]), str(STEPS[20]))
    assert tab.find(".axis .tick").first.text_content() == str(STEPS[10])
    tab.find("button:has-text('All steps')").click()
    expect(tab.find(".axis .tick").first).to_have_text("0")


def test_the_depth_view_shows_both_directions_at_a_step(tab, values):
    tab.show(run="sick", view="depth", step=STEPS[7], open='["encoder.layers.2"]')
    rows = tab.rows
    for name, of in (("health/activation_rms", values[0]), ("health/gradient_rms", values[1])):
        trace = tab.traces[name]
        at = trace["y"].index(rows.index("encoder.layers.2.norm1"))
        expected = np.log10(of[NAMES.index("encoder.layers.2.norm1"), 7])
        assert trace["x"][at] == pytest.approx(expected, rel=1e-6)
    before = tab.traces["health/activation_rms"]["x"]
    tab.find("#hookboard-step").focus()
    tab.page.keyboard.press("End")
    expect(tab.find(".stepper output")).to_have_text(str(STEPS[-1]))
    assert tab.traces["health/activation_rms"]["x"] != before
    assert tab.state["step"] == str(STEPS[-1])


def test_a_layer_shows_what_it_is_and_its_course_among_its_kind(tab, values):
    tab.show(run="sick", layer=SICK, step=STEPS[5])
    facts = tab.find(".side dl")
    for text in ("torch.nn.modules.Linear", "64 \N{MULTIPLICATION SIGN} 63 \N{MULTIPLICATION SIGN} 64", "weight"):
        expect(facts).to_contain_text(text)
    expect(tab.find(".side .card")).to_contain_text("dead_units")
    lines = first_chart(tab)
    np.testing.assert_allclose(lines["this layer"], values[0][ROW], rtol=1e-6)
    assert_band(lines, values[0], [i for i, (_, kind, _) in enumerate(layers_of()) if kind == "Linear"])
    expect(tab.find(".side figcaption").first).to_contain_text("9.9 at step 10")


def first_chart(tab):
    """The lines of the first statistic of the layer that is open, by name."""
    read = "gd => JSON.stringify(Object.fromEntries(gd.data.map(({ name, y }) => [name, y])))"
    return json.loads(tab.find(".side .chart .js-plotly-plot").first.evaluate(read))


def assert_band(lines, values, rows):
    """The band is that of the finite values of these rows."""
    finite = np.where(np.isfinite(values[rows]), values[rows], np.nan)
    for name, share in {"low": 10, "median of its type": 50, "10th to 90th percentile": 90}.items():
        np.testing.assert_allclose(lines[name], np.nanpercentile(finite, share, axis=0), rtol=1e-6)


def test_the_band_of_a_layer_leaves_out_what_is_not_finite(tab, values):
    tab.show(run="sick", layer="encoder.layers.3.linear1", series="health/gradient_rms")
    assert not np.isfinite(values[1][NAMES.index("encoder.layers.3.linear2")]).all()
    rows = [i for i, (name, kind, _) in enumerate(layers_of()) if kind == "Linear" and name != SICK]
    assert (values[1][ROW] == 0).all()
    assert_band(first_chart(tab), values[1], [*rows, ROW])
    # Fewer than three layers of a type are seen among all.
    tab.show(run="sick", layer="token_embedding")
    expect(tab.find(".side .key")).to_contain_text("median of all layers")
    assert_band(first_chart(tab), values[0], list(range(len(NAMES))))
