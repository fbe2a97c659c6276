"""The tab in TensorBoard, in a real browser: what people do with it, and what must not happen."""

import csv
import io
import re
import shutil
import time

import numpy as np
import pytest
from board.runs import NASTY
from board.sick_logs import SICK, STEPS, write_run
from board.test_page import NAMES, ROW, numbers
from PIL import Image

from hookboard.base.messages import explained

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect

pytestmark = pytest.mark.browser


def table(content):
    return list(csv.DictReader(io.StringIO(content.decode(), newline="")))


def test_what_each_view_shows_can_be_saved_as_csv(tab, values):
    tab.show(run="sick", series="train/gradient/std")
    lines = table(tab.download(".view button:has-text('CSV')"))
    assert len(lines) == len(NAMES) * len(STEPS)
    found = numbers([line["train/gradient/std"] for line in lines]).reshape(len(NAMES), len(STEPS))
    assert [line["layer"] for line in lines[:: len(STEPS)]] == NAMES
    assert [int(line["step"]) for line in lines[: len(STEPS)]] == list(STEPS)
    np.testing.assert_array_equal(found, values[1])
    tab.show(run="sick", view="depth", step=STEPS[3], layer=SICK)
    depth = {line["layer"]: line for line in table(tab.download(".view button:has-text('CSV')"))}
    assert float(depth["head"]["health/gradient_rms"]) == values[1][NAMES.index("head"), 3]
    lines = table(tab.download(".side button:has-text('CSV')"))
    layer = [line["value"] for line in lines if line["statistic"].endswith("activation_rms")]
    np.testing.assert_array_equal(numbers(layer), values[0][ROW])
    tab.show(run="sick")
    verdicts = table(tab.download(".side button:has-text('CSV')"))
    assert [(line["rule"], line["module"], line["since"]) for line in verdicts[:1]] == [("dead_units", SICK, "10")]


def alarmed(png):
    """The number of pixels in the colour of an alarm."""
    return (np.asarray(Image.open(io.BytesIO(png)).convert("RGB")) == (0xC5, 0x16, 0x2E)).all(axis=2).sum()


@pytest.mark.parametrize("view", ["map", "depth", "layer"])
def test_views_can_be_saved_as_pictures_with_their_alarms(tab, view):
    side = ".side" if view == "layer" else ".view"
    shown = {"layer": SICK} if view == "layer" else {"view": view}
    tab.show(run="sick", **shown)
    assert alarmed(tab.download(f"{side} button:has-text('PNG')")) > 200
    tab.show(run="old", **shown)
    assert alarmed(tab.download(f"{side} button:has-text('PNG')")) == 0


def test_all_of_it_is_reached_by_the_keyboard(tab):
    tab.find("#hookboard-types").focus()
    for _ in range(6):
        tab.page.keyboard.press("Tab")
        if tab.find(".grid:focus").count():
            break
    expect(tab.find(".grid")).to_be_focused()
    press = tab.page.keyboard.press
    tab.show(run="sick", row="encoder.layers.7.self_attn", step=STEPS[4])
    press("ArrowDown")
    press("ArrowRight")
    expect(tab.find(".said")).to_contain_text(f"{SICK}, Linear, step {STEPS[5]}")
    press("Enter")
    expect(tab.find(".side h2")).to_have_text(SICK)
    press("Escape")
    expect(tab.find(".side h2")).to_have_text("2 verdicts")
    expect(tab.find(".grid")).to_be_focused()


def test_back_returns_to_what_was_shown_before_and_forward_again(tab):
    tab.show(run="sick")
    tab.find("label:has-text('Depth')").click()
    tab.wait()
    tab.find(".name.alarm").click()
    expect(tab.find(".side h2")).to_have_text(SICK)
    tab.page.go_back()
    expect(tab.find(".side h2")).to_have_text("2 verdicts")
    assert tab.state["view"] == "depth"
    tab.page.go_back()
    expect(tab.find(".view h2")).to_have_text("activation RMS")
    tab.page.go_forward()
    expect(tab.find(".view h2")).to_have_text("How the signal travels")


def test_a_link_with_a_run_alone_opens_what_shows_its_worst_verdict_and_so_does_the_list(tab):
    tab.show(run="twin")
    assert tab.state["series"] == "health/gradient_rms"
    tab.show(run="sick")
    tab.find("#hookboard-run").select_option("twin")
    tab.until(lambda: tab.state["series"] == "health/gradient_rms")
    tab.find("#hookboard-what").select_option("train/activation/std")
    tab.wait()
    tab.find("#hookboard-run").select_option("sick")
    tab.until(lambda: tab.state["run"] == "sick")
    tab.wait()
    assert tab.state["series"] == "train/activation/std"  # what was chosen stays


def test_the_page_of_the_model_itself_is_opened_by_a_click_by_a_link_and_by_the_keyboard(tab):
    tab.show(run="whole", series="train/parameter/l2")
    tab.find(".name[title^='scale']").click()
    side = tab.find(".side")
    expect(side.locator("h2")).to_have_text("the model itself")
    expect(side).to_contain_text("my.models.Scaled")
    expect(side).to_contain_text("weight and bias RMS")
    expect(side).to_contain_text("its scale has grown")
    assert [line["row"] for line in table(tab.download(".side button:has-text('CSV')"))] == 3 * [""] + 3 * ["scale"]
    address = tab.state
    tab.find(".side button:has-text('\N{MULTIPLICATION X}')").click()
    expect(side.locator("h2")).to_have_text("1 verdict")
    tab.show(**address)
    expect(side.locator("h2")).to_have_text("the model itself")
    tab.show(run="whole", series="health/weight_rms")
    tab.find(".grid").focus()
    for key, text in (("ArrowUp", "the model itself"), ("ArrowDown", "net"), ("ArrowUp", "the model itself")):
        tab.page.keyboard.press(key)
        expect(tab.find(".said")).to_contain_text(f"{text}, ")
    tab.page.keyboard.press("Enter")
    expect(side.locator("h2")).to_have_text("the model itself")


@pytest.mark.parametrize(("module", "row"), [("the whole model", ""), ("away", "net.a")])
def test_a_verdict_without_a_row_marks_its_step_in_all_rows_and_selects_none(tab, module, row):
    tab.show(run="without_rows", series="train/activation/std", row=row)
    tab.find(f".card:has-text('{module}')").click()
    tab.wait()
    assert (tab.state["step"], tab.state.get("row")) == ("10", None)
    expect(tab.find(".said")).to_have_text("")
    expect(tab.find(".name.here")).to_have_count(0)
    assert tab.find(".grid[aria-activedescendant]").count() == 0
    mark, field = tab.box(".cursor"), tab.box(".field")
    assert mark["height"] == pytest.approx(field["height"], abs=1)
    middle = (mark["x"] + mark["width"] / 2 - field["x"]) / field["width"]
    assert middle == pytest.approx(1.5 / 4, abs=0.01)  # the second of four steps


def test_dark_mode_is_that_of_tensorboard(tab):
    background = "one => getComputedStyle(one).backgroundColor"
    view = tab.find(".view")
    assert view.evaluate(background) == "rgb(255, 255, 255)"
    tab.page.evaluate("document.body.classList.add('dark-mode')")
    expect(view).to_have_css("background-color", "rgb(48, 48, 48)")
    tab.page.evaluate("document.body.classList.remove('dark-mode')")
    expect(view).to_have_css("background-color", "rgb(255, 255, 255)")


def test_a_narrow_window_has_one_column_with_the_worst_verdict_first(tab):
    tab.page.set_viewport_size({"width": 390, "height": 844})
    view, side = tab.find(".view"), tab.find(".side")
    expect(view).to_have_css("width", "374px")
    assert view.bounding_box()["y"] >= side.bounding_box()["y"] + side.bounding_box()["height"]
    assert tab.find("body").evaluate("() => document.documentElement.scrollWidth") <= 390
    expect(tab.find(".card.alarm .advice")).to_be_in_viewport()
    tab.find(".card.alarm").click()
    expect(tab.find(".name.alarm")).to_be_in_viewport()
    tab.find("button:has-text('Show this layer')").click()
    expect(tab.find(".side h2")).to_have_text(SICK)
    assert side.bounding_box()["y"] >= view.bounding_box()["y"] + view.bounding_box()["height"]


def test_a_verdict_says_what_its_rule_means_and_when_it_is_wrong(tab):
    tab.show(run="sick")
    fold = tab.find(".card.alarm ~ details:has-text('What dead_units means')")
    fold.locator("summary").click()
    told = explained("dead_units")
    said = fold.locator(".meaning").all_text_contents()
    assert said == [f"{head}: {text}".replace("`", "") for head, text in told.items()]
    assert "When it is wrong" in told
    expect(fold.locator(".meaning").first).to_be_visible()


def test_the_tab_opens_on_the_worst_of_the_latest_runs_and_their_list_says_how_each_stands(tab):
    # Older ones have more alarms; "twin", as new as this one, has as many.
    assert (tab.state["run"], tab.state["series"]) == ("sick", "health/activation_rms")
    texts = tab.find("#hookboard-run option").all_text_contents()
    said = {text.partition(" \N{MIDDLE DOT} ")[0]: text for text in texts}
    for part in ("\N{BLACK UP-POINTING TRIANGLE} 1 \N{BLACK CIRCLE} 1", "loss 1 ", "ended", "days ago"):
        assert part in said["sick"]
    assert "not watched" in said["old"]
    assert "last point" in said["old"]
    assert "no verdicts" in said["tall"]
    expect(tab.find("#hookboard-status")).to_contain_text("step 118")


def test_a_run_that_goes_on_says_so_and_its_new_steps_are_seen_without_a_click(tab, page_logs):
    start, now = STEPS[:10], time.time()
    write_run(page_logs / "going", has_record=False, steps=start, started=now)
    tab.until(lambda: "going" in str(tab.find("#hookboard-run option").all_text_contents()))
    tab.show(run="going", row="head", how="linear", layer="head")
    status = tab.find("#hookboard-status")
    try:
        expect(status).to_have_text(re.compile(rf"running, step {start[-1]}, read \d+ s ago"))
        write_run(page_logs / "going", has_record=False, steps=STEPS[10:14], started=now + 60)
        # TensorBoard reads each second here, each five seconds otherwise.
        expect(status).to_contain_text(f"step {STEPS[13]}", timeout=6_000)
        expect(tab.find(".facts-line").first).to_contain_text(f"steps 0 to {STEPS[13]}")
        assert (tab.state["row"], tab.state["how"]) == ("head", "linear")
        steps = "gd => gd.data.find(({ name }) => name === 'this layer').x"
        tab.until(lambda: tab.find(".side .js-plotly-plot").first.evaluate(steps) == list(STEPS[:14]))
        tab.show(run="sick")
    finally:
        shutil.rmtree(page_logs / "going")  # it would be the latest run
    tab.until(lambda: "going" not in str(tab.find("#hookboard-run option").all_text_contents()))


def test_a_link_to_a_run_that_is_gone_says_so(tab):
    tab.show(run="gone", series="train/nothing/std")
    expect(tab.find(".notice")).to_contain_text(
        "There is no run \N{LEFT DOUBLE QUOTATION MARK}gone\N{RIGHT DOUBLE QUOTATION MARK}"
    )
    tab.show(run="sick")
    expect(tab.find(".notice")).to_be_hidden()


@pytest.mark.parametrize("run", ["old", "logged"], ids=["no record", "that of a logger"])
def test_a_run_without_a_record_says_how_to_get_verdicts(tab, run):
    tab.show(run=run)
    expect(tab.find(".side")).to_contain_text("HealthMonitor()")
    expect(tab.find(".card")).to_have_count(0)


def test_foreign_names_are_shown_as_text(tab):
    tab.show(run="zoo", sort="name")
    assert sorted(tab.rows) == sorted(NASTY)
    count = "() => document.querySelectorAll('img, script:not([src]), .name b, .card b:not(:first-child), a').length"
    bare = tab.find("body").evaluate(count)
    for name in NASTY:
        tab.show(run="zoo", layer=name, row=name)
        expect(tab.find(".side h2")).to_have_text(name)
        expect(tab.find(".said")).to_contain_text(name)
    assert tab.download(".side button:has-text('PNG')").startswith(b"\x89PNG")
    assert tab.download(".view button:has-text('PNG')").startswith(b"\x89PNG")
    tab.show(run="zoo")
    expect(tab.find(".card")).to_contain_text(NASTY[0])
    assert tab.find(".item .where").all_text_contents() == [*NASTY[1:], NASTY[0]]
    assert tab.find("body").evaluate(count) == bare


def test_what_is_alike_and_what_follows_is_folded_on_the_card_and_opened_by_the_keyboard(tab):
    tab.show(run="zoo")
    expect(tab.find(".card")).to_have_count(1)
    alike, effects, _ = tab.find(".fold-list summary").all()
    expect(alike).to_have_text(f"The same in {len(NASTY) - 1} more layers")
    expect(effects).to_have_text(f"1 verdict follows from it: {NASTY[0]}")
    expect(tab.find(".item").first).to_be_hidden()
    alike.focus()
    tab.page.keyboard.press("Enter")
    tab.page.keyboard.press("Tab")
    expect(tab.find(".item").first).to_be_focused()
    tab.page.keyboard.press("Enter")
    expect(tab.find(".item.chosen .where")).to_have_text(NASTY[1])
    expect(tab.find(".item").first).to_be_focused()
    assert tab.state["row"] == NASTY[1]
    tab.find(".card").click()
    expect(tab.find(".item").first).to_be_visible()


def curve_of(tab):
    """The points of the loss above the map, as shares of the width; a gap begins a new list."""
    path = tab.find(".loss path").get_attribute("d")
    return [[float(point.split()[0]) / 1000 for point in part.split("L")] for part in path.split("M")[1:]]


def test_the_loss_stands_above_the_map_at_the_steps_of_its_columns(tab):
    tab.show(run="sick")
    expect(tab.find(".loss")).to_contain_text("train/loss4 → 1")
    count = len(STEPS)
    (before, after) = curve_of(tab)
    np.testing.assert_allclose(before, [(i + 0.5) / count for i in range(5)], atol=1e-4)
    np.testing.assert_allclose(after, [(i + 0.5) / count for i in range(6, count)], atol=1e-4)
    boxes = [tab.box(selector) for selector in (".loss svg", "#hookboard-plot")]
    assert boxes[0]["x"] == pytest.approx(boxes[1]["x"], abs=1)
    assert boxes[0]["width"] == pytest.approx(boxes[1]["width"], abs=1)
    tab.show(run="sick", **{"from": STEPS[10], "to": STEPS[19]})
    (part,) = curve_of(tab)
    np.testing.assert_allclose(part, [(i + 0.5) / 10 for i in range(10)], atol=1e-4)


@pytest.mark.parametrize(
    ("values", "columns", "shown"),
    [
        (["nan", 1.2, 1.1, "inf"], [0, 2], "NaN → +Inf"),  # after the last column of the map, where the fit ended
        ([1.38, 1.2, 1.1, "nan"], [0, 1], "1.38 → 1.2"),
        ([1.38, 1.2, 1.1, None], [0, 2], "1.38 → 1.1"),
    ],
)
def test_the_heading_of_the_loss_has_its_first_and_last_value_finite_or_not(tab, values, columns, shown):
    draw = """async (body, [address, values, columns]) => {
        const { drawLoss } = await import(address);
        const root = document.createElement("div");
        drawLoss(root, { tag: "train/loss", steps: [0, 10, 20, 25], values }, [0, 10, 20], columns);
        return [root.querySelector(".loss-ends").textContent, root.querySelector("svg").getAttribute("aria-label")];
    }"""
    address = f"{tab.address}/data/plugin/hookboard/loss.js"
    heading, label = tab.find("body").evaluate(draw, [address, values, columns])
    assert heading == shown
    assert label == f"train/loss from {shown.replace('→', 'to')}"


@pytest.mark.parametrize(
    ("steps", "columns", "shown"),
    [
        ([0, *range(9, 120, 10)], [0, 12], ["0", "19", "39", "59", "79", "99", "119"]),
        ([*range(100), 10**6], [0, 100], ["0", "20", "40", "60", "80", "1000000"]),
        ([], [0, -1], []),
    ],
)
def test_the_steps_below_the_map_have_labels_at_even_distances(tab, steps, columns, shown):
    ask = """async (body, [address, steps, columns]) => {
        const { stepMarks } = await import(address);
        return stepMarks(steps, columns, 9.5).map(({ text }) => text);
    }"""
    address = f"{tab.address}/data/plugin/hookboard/map.js"
    assert tab.find("body").evaluate(ask, [address, steps, columns]) == shown
