import io
import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import hookboard
from hookboard.images.heat_map import (
    AXIS_HEIGHT,
    LABEL_HEIGHT,
    MAP_WIDTH,
    MARK_WIDTH,
    MARKS,
    heat_map,
    labels_of,
)
from hookboard.images.picture import (
    BAR_HEIGHT,
    COLOURS,
    HEAT,
    LEVELS,
    MARGIN,
    MISSING,
    NOT_FINITE,
    OTHER_COLOURS,
    PAPER,
    WIDTH,
    ColourScale,
    log_scale,
)

NAMES = ["embed", *(f"layers.{block}.{part}" for block in range(33) for part in "abcdef"), "head"]
TIME_SERIES, CARD = 215, 350
"""The height of a picture on a card of the Time Series tab, and its width on one of the Images tab, in pixels."""


def drawn(values, names=None, **options):
    names = [f"n{i}" for i in range(len(values))] if names is None else names
    steps = list(range(0, 10 * np.shape(values)[1], 10))
    return heat_map(np.array(values, dtype=float), names, steps, **{"title": "RMS", "unit": "RMS"} | options)


def seen(picture):
    """What is seen in the coded file: RGB of the part below the caption."""
    data, width, _ = picture.encode()
    image = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    assert width == WIDTH
    return image[-len(picture.pixels) - BAR_HEIGHT :, MARGIN:-MARGIN].astype(int)


def bar_of(pixels):
    """The colours of the bar from left to right, and the columns of the picture that it takes."""
    line = pixels[len(pixels) - BAR_HEIGHT + 11]
    columns = np.flatnonzero((line != 255).any(axis=1))
    columns = columns[np.flatnonzero(np.diff(columns, prepend=-2) > 1)[-1] :]  # the unit stands left of it
    return line[columns], columns


def cell(picture, pixels, row, column, shape):
    """The colour in the middle of a cell, where all rows are equally high."""
    rows, columns = shape
    height = len(pixels) - AXIS_HEIGHT - BAR_HEIGHT
    _, at = bar_of(pixels)
    x = at[0] + min(int((column + 0.5) * len(at) / columns), len(at) - 1)
    return pixels[int((row + 0.5) * height / rows), x]


@pytest.mark.parametrize("scale", [None, ColourScale(0.0, 1.0)])
def test_the_colour_of_a_cell_is_found_on_the_bar_at_its_value(scale):
    values = np.random.default_rng(0).uniform(0.01, 1.0, (5, 12))
    picture = drawn(values, scale=scale)
    pixels = seen(picture)
    bar, _ = bar_of(pixels)
    low, high = (0.0, 1.0) if scale else (values.min(), values.max())
    for row in range(5):
        for column in range(12):
            nearest = np.abs(bar - cell(picture, pixels, row, column, values.shape)).sum(axis=1).argmin()
            share = nearest / (len(bar) - 1)
            value = low + share * (high - low) if scale else low * (high / low) ** share
            assert value == pytest.approx(values[row, column], abs=0.01, rel=0.03)


def test_the_ends_of_the_bar_are_the_extremes_and_cut_off_outliers_are_said_to_be():
    assert log_scale(np.array([0.01, 0.1, 1.0])).ends == ("0.01", "1")
    values = np.append(np.full(100, 1.0), [1e-12, 1e9])
    scale = log_scale(values)
    assert scale.ends == ("<0.01", ">100")
    assert scale.shares(values)[-2:].tolist() == [0.0, 1.0]


def test_a_layer_a_decade_below_all_others_and_zero_have_other_colours_than_any_of_them():
    values = np.full((200, 30), 0.3) * np.random.default_rng(0).uniform(0.9, 1.1, (200, 30))
    values[77] *= 0.1
    shares = log_scale(values).shares(values)
    assert shares[77].max() < 0.2
    assert np.delete(shares, 77, axis=0).min() > 0.8
    scale = log_scale(np.array([0.0, 0.01, 1.0]))
    assert scale.shares(np.array([0.0, 0.01]))[0] == 0
    assert scale.shares(np.array([0.0, 0.01]))[1] > 0.15
    assert scale.ends[0].startswith("<")


def test_no_value_and_what_is_not_finite_have_colours_of_their_own():
    picture = drawn([[np.nan, 1.0], [np.inf, 2.0]])
    pixels = seen(picture)
    assert cell(picture, pixels, 0, 0, (2, 2)).tolist() == HEAT[MISSING].tolist()
    assert cell(picture, pixels, 1, 0, (2, 2)).tolist() == HEAT[NOT_FINITE].tolist()
    values = HEAT[:LEVELS].astype(int)
    for own in (MISSING, NOT_FINITE):
        assert np.abs(values - HEAT[own].astype(int)).sum(axis=1).min() > 60
        legend = pixels[-BAR_HEIGHT:, : MAP_WIDTH // 4]
        assert (legend == HEAT[own]).all(axis=2).sum() == 14 * 14, "a square of the legend"


def test_the_colours_are_those_of_the_tab():
    tab = (Path(hookboard.__file__).parent / "board" / "static" / "map.js").read_text()
    values = re.search(r"^const VALUES = (.*?);", tab, re.DOTALL | re.MULTILINE)[1]
    assert {float(at): code for at, code in re.findall(r'\[([\d.]+), "#(\w+)"\]', values)} == COLOURS
    assert f'broken: "#{OTHER_COLOURS["not finite"]}"' in tab
    assert HEAT[[0, LEVELS - 1, NOT_FINITE]].tobytes().hex() == f"472c7afde725{OTHER_COLOURS['not finite']}"


def test_a_single_value_that_is_not_finite_is_seen_among_more_columns_than_pixels():
    for column in range(100, 110):
        values = np.ones((3, 256))
        values[1, column] = np.inf
        assert (drawn(values, ["a" * 40, "b", "c"]).pixels[:-AXIS_HEIGHT] == NOT_FINITE).any()


@pytest.mark.parametrize("columns", [1, 256])
def test_the_last_column_reaches_the_end_of_the_axis(columns):
    values = np.full((2, columns), 0.1)
    values[:, -1] = 1.0
    picture = drawn(values, scale=ColourScale(0.1, 1.0, is_log=True))
    pixels = seen(picture)
    assert (cell(picture, pixels, 0, columns - 1, values.shape) == bar_of(pixels)[0][-1]).all()


@pytest.mark.parametrize("mark", ["alarm", "note"])
def test_a_sick_row_is_marked_at_both_ends_and_beside_its_name(mark):
    values = np.full((200, 30), 0.3)
    picture = drawn(values, NAMES, marks={"layers.7.c": mark})
    row = NAMES.index("layers.7.c")
    full = picture.pixels == MARKS[mark]
    _, at = bar_of(seen(picture))
    left = full[:, at[0] - MARK_WIDTH : at[0]].all(axis=1)
    right = full[:, at[-1] + 1 : at[-1] + 1 + MARK_WIDTH].all(axis=1)
    assert (left == right).all()
    marked = np.flatnonzero(left)
    assert marked.tolist() == list(range(marked[0], marked[0] + 8)), "a row of one pixel is drawn in eight"
    above, below = marked[0], len(full) - AXIS_HEIGHT - marked[-1] - 1
    assert above / (above + below) == pytest.approx(row / 199, abs=0.01)
    assert full[:, : at[0] - MARK_WIDTH].any(), "the triangle beside the name"
    assert picture.caption.endswith(f", marked: 1 {mark}")


@pytest.mark.parametrize(("count", "height"), [(1, 2 * TIME_SERIES), (140, 2 * TIME_SERIES), (3000, 880)])
def test_a_picture_is_shown_at_half_its_size_on_a_card_unless_it_has_very_many_layers(count, height):
    names = [f"layers.{i}" for i in range(count)]
    picture = drawn(np.full((count, 30), 0.3), names, marks={names[count // 2]: "alarm"})
    assert (picture.pixels == MARKS["alarm"]).any()
    image = picture.image()
    assert image.width == 2 * CARD
    assert image.height <= height


def test_of_200_layers_beginnings_of_blocks_are_named_and_all_sick_ones():
    sick = {NAMES.index(name) for name in ("layers.7.c", "layers.30.a")} | {0, 199}
    labels = labels_of(NAMES, range(0, 2 * len(NAMES) + 1, 2), sorted(sick))
    assert sick <= set(labels)
    assert len(labels) >= 12
    assert all(NAMES[row].endswith(".a") for row in labels.keys() - sick)
    for above, below in itertools.pairwise(sorted(labels)):
        assert labels[below] - labels[above] >= LABEL_HEIGHT
    assert min(labels.values()) >= LABEL_HEIGHT / 2
    assert max(labels.values()) <= 2 * len(NAMES) - LABEL_HEIGHT / 2
    close = labels_of(NAMES, range(len(NAMES) + 1), [190, *range(100), 180])
    assert (190 in close, 180 in close) == (True, False), "the one that matters most is named"


@pytest.mark.parametrize("name", ["embed", "encoder.layers.7.attention.projection.linear1", "a" * 90])
def test_a_name_stands_left_of_its_row_and_a_long_one_keeps_its_end(name):
    picture = drawn(np.ones((1, 3)), [name])
    _, at = bar_of(seen(picture))
    ink = np.argwhere(picture.pixels[:-AXIS_HEIGHT, : at[0]] != PAPER)[:, 1]
    assert 0 < ink.min() < ink.max() < at[0]


def test_words_that_all_names_begin_with_are_said_once_and_without_rows_nothing_is_drawn():
    assert drawn(np.ones((2, 3)), ["model.net.0", "model.net.1"]).caption == "RMS of 2 layers in model.net"
    assert (drawn(np.ones((0, 3))).pixels[:3, :60] == PAPER).all()
