"""Histograms that are drawn as bars."""

import numpy as np
import pytest

from hookboard.images import histogram_picture, sheet
from hookboard.images.bars import BAR_COLOUR, HEIGHT

pytestmark = pytest.mark.unit


def heights(counts, edges):
    pixels = histogram_picture("net.0", np.array(counts, float), np.array(edges, float)).pixels
    return (pixels[:HEIGHT] == BAR_COLOUR).sum(axis=0)


def test_the_area_of_a_bar_is_its_share_of_the_values():
    drawn = heights([10, 10, 20], [0, 1, 3, 4])
    count = len(drawn)
    areas = [part.sum() for part in np.split(drawn, [count // 4, 3 * count // 4])]
    np.testing.assert_allclose(np.array(areas) / sum(areas), [0.25, 0.25, 0.5], atol=0.02)
    assert drawn.max() == HEIGHT


def test_values_that_are_all_the_same_are_one_bar():
    assert (heights([5], [2, 2]) == HEIGHT).all()


def test_no_values_at_all_are_drawn_as_nothing():
    assert not heights([0, 0], [0, 1, 2]).any()


def test_a_sheet_has_all_pictures_side_by_side():
    pictures = [histogram_picture(f"net.{i}", np.ones(2), np.arange(3.0)) for i in range(5)]
    one, all_ = pictures[0].image(), sheet(pictures)
    assert all_.size == (3 * one.width, 2 * one.height)
    np.testing.assert_array_equal(np.asarray(all_.crop((0, 0, one.width, one.height))), np.asarray(one.convert("RGB")))
