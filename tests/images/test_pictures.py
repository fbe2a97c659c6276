import io

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from hookboard.images.feature_maps import (
    drawn_inputs,
    feature_maps,
    kernel_picture,
    maps_in,
    samples_first,
    select_inputs,
    select_maps,
    selected_kernels,
)
from hookboard.images.picture import (
    BAR_HEIGHT,
    GREY,
    HEAT,
    LEVELS,
    LINE_HEIGHT,
    MARGIN,
    NOT_FINITE,
    PAPER,
    TILE_GAP,
    WIDTH,
    Bar,
    ColourScale,
    Picture,
    font,
    indices,
    overlays,
    unnormalized,
)

RELU, CONV1D, ATTENTION = nn.ReLU(), nn.Conv1d(1, 1, 1), nn.MultiheadAttention(4, 4)


def picture_of(tensor, *, module=RELU, aspect=1.0, channels=16, normalize="map", size=40, inputs=None):
    maps = maps_in(tensor, module, aspect=aspect)
    part = select_maps(maps, channels=channels, size=size)
    drawn = None if inputs is None else drawn_inputs(inputs, 2 * size)
    return feature_maps(part, "net.conv", normalize=normalize, size=size, inputs=drawn)


def tile(picture, sample, channel, size=40):
    """The palette indices of a tile, one for each pixel of the map, in lines that hold all channels in a row."""
    top, left = sample * (size + TILE_GAP + MARGIN), channel * (size + TILE_GAP)
    return picture.pixels[top : top + size, left : left + size]


def test_a_tile_holds_its_map_and_nothing_else():
    tensor = torch.arange(2 * 3 * 4 * 4.0).view(2, 3, 4, 4)
    picture = picture_of(tensor)
    expected = indices(np.arange(16).reshape(4, 4) / 15).repeat(10, 0).repeat(10, 1)
    for sample in range(2):
        for channel in range(3):
            assert (tile(picture, sample, channel) == expected).all()
    assert (picture.pixels == PAPER).sum() == picture.pixels.size - 6 * 40 * 40


def test_what_is_drawn_can_be_read_back_from_the_file():
    picture = picture_of(torch.randn(2, 4, 8, 8))
    data, width, height = picture.encode()
    read = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    assert read.shape == (height, width, 3)
    rows, columns = picture.pixels.shape
    assert (read[-rows - BAR_HEIGHT : -BAR_HEIGHT, MARGIN : MARGIN + columns] == HEAT[picture.pixels]).all()


def test_ranges_of_a_layer_and_fixed_ones_keep_maps_comparable():
    tensor = torch.tensor([[[[0.0]], [[1.0]], [[4.0]]]]).expand(-1, -1, 2, 2)
    of_layer = picture_of(tensor, normalize="layer")
    assert [tile(of_layer, 0, k)[0, 0] for k in range(3)] == [0, round(0.25 * (LEVELS - 1)), LEVELS - 1]
    assert of_layer.bars[0].scale.ends == ("0", "4")
    fixed = picture_of(tensor, normalize=(0, 2))
    assert [tile(fixed, 0, k)[0, 0] for k in range(3)] == [0, round(0.5 * (LEVELS - 1)), LEVELS - 1]
    assert fixed.bars[0].scale.ends == ("0", ">2")


def test_what_is_not_finite_is_drawn_in_a_colour_of_its_own_and_counted():
    tensor = torch.rand(1, 2, 4, 4)
    tensor[0, 0, 0, 0], tensor[0, 1, 1, 1] = torch.nan, torch.inf
    picture = picture_of(tensor)
    assert tile(picture, 0, 0)[0, 0] == tile(picture, 0, 1)[10, 10] == NOT_FINITE
    assert (picture.pixels == NOT_FINITE).sum() == 2 * 10 * 10
    assert "magenta: NaN or infinite (2 pixels)" in picture.caption
    whole = picture_of(torch.full((1, 2, 4, 4), torch.nan))
    assert (tile(whole, 0, 1) == NOT_FINITE).all()
    assert "values" not in whole.caption


@pytest.mark.parametrize(("value", "level"), [(0.0, 0.0), (3.0, 0.5), (-3.0, 0.5)])
def test_a_constant_map_is_dark_only_where_it_is_zero(value, level):
    assert (tile(picture_of(torch.full((1, 1, 4, 4), value)), 0, 0) == round(level * (LEVELS - 1))).all()


def test_the_caption_has_both_ends_of_the_values_and_the_bar_has_room_for_its_words():
    picture = picture_of(torch.tensor([[[[-2.531, 0.0]], [[1.0, 31234.5]]]]))
    assert picture.caption.endswith("; values from -2.53 to 3.12e+04")
    assert "channels 0 to 15 of 2048" in picture_of(torch.rand(1, 2048, 2, 2)).caption
    (bar,) = picture.bars
    assert sum(font().getlength(words) for words in (bar.label, *bar.ends)) < WIDTH - 6 * MARGIN


@pytest.mark.parametrize(
    ("module", "shape"), [(nn.AdaptiveAvgPool3d(1), (2, 20, 1, 1, 1)), (nn.LayerNorm(20), (2, 1, 1, 20))]
)
def test_maps_of_one_pixel_are_drawn_as_one_map_of_all_channels(module, shape):
    values = torch.arange(2 * 20.0).view(2, 20)
    picture = picture_of(values.reshape(shape), module=module)
    assert picture.caption.startswith("net.conv: one map, 1x20, channels from left to right; values from 0 to 39")
    drawn = picture.pixels[10, :: picture.pixels.shape[1] // 20][:20]
    assert (drawn == indices(np.arange(20) / 19)).all()


def test_large_maps_are_averaged_over_areas_and_do_not_change_with_the_tensor():
    values = torch.arange(80 * 80.0).view(1, 1, 80, 80).repeat(1, 2, 1, 1)
    first, small = values[0, 0, :2, :2].mean(), values[..., :4, :4].clone()
    part = select_maps(maps_in(values, RELU, aspect=1.0), channels=2, size=40)
    kept = select_maps(maps_in(small, RELU, aspect=1.0), channels=2, size=40)
    before = kept.values.clone()
    for tensor in (values, small):
        tensor.zero_()
    assert part.values.shape == (1, 2, 40, 40)
    assert part.values[0, 0, 0, 0] == first
    assert torch.equal(kept.values, before)


@pytest.mark.parametrize(
    ("shape", "module", "aspect", "expected", "words"),
    [
        ((2, 4, 6, 6), ATTENTION, None, (2, 4, 6, 6), "attention weights, queries by keys"),
        ((2, 6, 6), ATTENTION, None, (2, 1, 6, 6), "attention weights, queries by keys"),
        ((2, 8, 5, 5), RELU, 1.0, (2, 8, 5, 5), ""),
        ((2, 5, 5, 8), RELU, 1.0, (2, 8, 5, 5), ""),
        ((2, 5, 7, 8), nn.Linear(8, 8), 1.0, (2, 8, 5, 7), ""),
        ((2, 7, 7, 5), nn.Conv2d(7, 7, 1), 1.0, (2, 7, 7, 5), ""),
        ((2, 8, 6, 5, 5), RELU, 1.0, (2, 8, 5, 5), "slice 3 of 6"),
        ((2, 8, 30), CONV1D, 1.0, (2, 1, 8, 30), "channels by positions"),
        ((2, 49, 8), RELU, 1.0, (2, 8, 7, 7), "patches"),
        ((2, 50, 8), RELU, 1.0, (2, 8, 7, 7), "patches, without the class token"),
        ((2, 49, 8), RELU, None, (2, 1, 49, 8), "positions by features"),
        ((2, 48, 8), RELU, 1.0, (2, 1, 48, 8), "positions by features"),
        ((2, 25, 8), RELU, 4 / 6, (2, 8, 4, 6), "patches, without the class token"),
        ((2, 51, 8), RELU, 1.0, (2, 8, 7, 7), "patches, without the 2 tokens before them"),
        ((2, 16, 16, 24), RELU, 16 / 24, (2, 16, 16, 24), ""),
        ((2, 8), RELU, 1.0, (2, 1, 1, 8), "features from left to right"),
    ],
)
def test_any_output_has_a_picture(shape, module, aspect, expected, words):
    index = "1" if module is ATTENTION else ""  # its weights
    maps = maps_in(torch.rand(shape), module, aspect=aspect, index=index)
    assert (tuple(maps.values.shape), maps.words) == (expected, words)


def test_tokens_become_the_map_that_their_places_make():
    image = torch.rand(1, 8, 3, 3)
    tokens = torch.cat([torch.rand(1, 1, 8), image.flatten(2).transpose(1, 2)], dim=1)
    assert torch.equal(maps_in(tokens, RELU, aspect=1.0).values, image)


@pytest.mark.parametrize(
    ("module", "index", "is_swapped"),
    [
        (nn.TransformerEncoderLayer(4, 2), "", True),
        (ATTENTION, "0", True),
        (ATTENTION, "1", False),
        (nn.LSTM(4, 4, batch_first=True), "0", False),
        (nn.LSTM(4, 4, batch_first=True), "1/0", True),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_samples_come_first_whatever_the_module_puts_there(module, index, is_swapped):
    expected = (3, 2, 4) if is_swapped else (2, 3, 4)
    assert tuple(samples_first(torch.rand(2, 3, 4), module, index).shape) == expected


def kernels(*shape, change=0.0, size=24):
    torch.manual_seed(0)
    weight = torch.randn(shape)
    before = selected_kernels(weight, kernels=16, channels=8)
    now = selected_kernels(weight + change, kernels=16, channels=8)
    return now, kernel_picture(now, before, "conv", weight.shape, size=size)


def test_kernels_of_three_channels_are_in_colour_and_others_have_a_tile_for_each_channel():
    now, picture = kernels(4, 3, 2, 2)
    expected = (0.5 + 0.5 * now[1, :, 0, 1] / now.abs().max()) * 255
    assert picture.pixels[2, 24 + TILE_GAP + 14].tolist() == pytest.approx(expected.tolist(), abs=0.6)
    assert "in colour" in picture.caption
    now, picture = kernels(4, 5, 3, 3)
    expected = ((0.5 + 0.5 * now[2, 3, 1, 1] / now.abs().max()) * 255).item()
    pixel = picture.palette[picture.pixels[2 * 26 + 12, 3 * 26 + 12]]
    assert pixel.tolist() == pytest.approx([expected] * 3, abs=1.1)


def test_the_right_half_is_the_change_and_grey_where_there_is_none():
    _, still = kernels(4, 3, 2, 2)
    start = still.bars[1].left
    assert (still.pixels[:20, start : start + 20] == 128).all()
    _, moved = kernels(4, 3, 2, 2, change=0.25)
    assert "change in this fit, ±0.25" in moved.caption


@pytest.mark.parametrize("shape", [(4, 2, 5), (40, 20, 3, 3), (4, 2, 3, 3, 3), (1, 1, 1), (9, 1, 3, 3)])
def test_kernels_of_any_shape_have_a_picture(shape):
    _, picture = kernels(*shape)
    assert len(np.unique(picture.pixels)) >= 3  # paper, no change, and weights


def test_a_kernel_of_nan_is_drawn():
    weight = torch.full((2, 2, 3, 3), torch.nan)
    picture = kernel_picture(weight, weight, "conv", weight.shape, size=24)
    assert picture.pixels[5, 5] == NOT_FINITE
    assert "magenta" in picture.caption


def test_a_picture_is_shown_as_it_was_before_it_was_normalized_and_a_nan_leaves_its_other_pixels():
    original = torch.rand(2, 3, 8, 8)
    mean, std = [0.5, 0.4, 0.3], [0.2, 0.3, 0.1]
    normalized = (original - torch.tensor(mean).view(-1, 1, 1)) / torch.tensor(std).view(-1, 1, 1)
    shown_again = torch.from_numpy(unnormalized(normalized, mean, std)).permute(0, 3, 1, 2)
    assert torch.allclose(shown_again / 255, original, atol=1 / 255)
    picture = torch.linspace(0, 1, 16).view(1, 1, 4, 4)
    picture[0, 0, 0, 1] = torch.nan
    shown = unnormalized(picture, None, None)[0, :, :, 0]
    assert (shown[0, 0], shown[0, 1], shown[3, 3], shown[2, 2]) == (0, 0, 255, round(10 / 15 * 255))


def test_an_overlay_has_the_picture_the_map_and_both_in_one_row():
    inputs = np.zeros((2, 16, 16, 3), np.uint8)
    inputs[0] = 200
    maps = torch.zeros(2, 1, 1)
    maps[0] = 5.0
    pixels = overlays(inputs, maps, ["one", "two"], "caption", size=64).pixels
    lightest, darkest = HEAT[LEVELS - 1].astype(int), HEAT[0].astype(int)
    line = LINE_HEIGHT + MARGIN
    assert pixels[line + 30, 30].tolist() == [200] * 3
    assert pixels[line + 30, 66 + 30].tolist() == lightest.tolist()
    assert np.abs(pixels[line + 30, 132 + 30] - (0.3 * 200 + 0.7 * lightest)).max() <= 1
    zero = pixels[2 * line + 66 + MARGIN + 30]
    assert (zero[66 + 30].tolist(), zero[132 + 30].tolist()) == (darkest.tolist(), [0] * 3), "the picture itself"


def test_a_bar_has_no_mark_without_its_number():
    """It would be taken for the place of the number at the end, which stands a little inside."""
    bar = Bar(ColourScale(-0.138, 0.138), "", start=100, right=300)
    picture = Picture(np.full((10, 600), PAPER, np.uint8), "caption", GREY, bars=(bar,))
    marks = np.asarray(picture.image().convert("L"))[-BAR_HEIGHT + 28, MARGIN:-MARGIN] < 128
    assert np.count_nonzero(np.diff(marks.astype(int)) == 1) == 3  # both ends, and 0


@pytest.mark.parametrize("scale", [ColourScale(-3.2, 4.1), ColourScale(0.0, 0.05), ColourScale(0.02, 30.0, True)])
def test_numbers_of_a_bar_are_round_and_on_it_and_a_single_value_has_none(scale):
    ticks = scale.ticks()
    assert 2 <= len(ticks) <= 6
    assert all(scale.low <= tick <= scale.high and float(f"{tick:.1g}") == tick for tick in ticks)
    assert ColourScale(scale.low, scale.low).ticks() == []


def test_an_input_in_colour_is_shown_in_colour_and_the_maps_stay_as_they_are():
    inputs, maps = torch.rand(1, 3, 8, 8), torch.rand(1, 3, 4, 4)
    picture, alone = picture_of(maps, inputs=inputs), picture_of(maps)
    expected = unnormalized(inputs, None, None)[0].repeat(10, 0).repeat(10, 1)
    assert (picture.pixels[:80, :80] == expected).all()
    rows, columns = alone.pixels.shape
    assert (picture.pixels[:rows, 88 : 88 + columns] == HEAT[alone.pixels]).all()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.rand(2, 16, 8, 8),
        torch.rand(2, 3, 1, 1),
        torch.rand(0, 3, 8, 8),
        torch.rand(2, 3, 8, 8, dtype=torch.complex64),
        torch.rand(2, 3, 8, 8, device="meta"),
    ],
)
def test_what_is_no_picture_is_not_shown_as_an_input(tensor):
    assert select_inputs([("", tensor)], samples=2, size=64) == (None, 0)


def test_the_first_pictures_of_a_batch_are_its_inputs_and_are_copied():
    pictures = torch.rand(4, 3, 8, 8)
    taken, count = select_inputs([("0", torch.zeros(4)), ("1", pictures)], samples=2, size=64)
    assert count == 4
    expected = pictures[:2].clone()
    pictures.zero_()
    assert torch.equal(taken, expected)


def test_a_long_caption_is_broken_into_lines_of_the_pictures_width():
    short = Picture(np.zeros((10, 900), np.uint8), "short").image()
    long = Picture(np.zeros((10, 900), np.uint8), "many words " * 30).image()
    assert short.size[0] == long.size[0] == 900 + 2 * MARGIN
    assert long.size[1] > short.size[1] + 50
    assert (np.asarray(long)[:-MARGIN, -MARGIN:] == PAPER).all()
