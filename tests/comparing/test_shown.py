"""What a comparison shows in a notebook."""

import copy
import re
from contextlib import closing

import pytest
import torch
from board.conftest import chromium  # noqa: F401 - a fixture
from comparing.nets import INPUTS, Transformer, loss, model, planted
from torch import nn

from hookboard import compare, record
from hookboard.report import main


def rows_of(found):
    """The table's rows, without the header."""
    return re.findall("<tr>.*?</tr>", found._repr_html_())[1:]


def test_each_module_has_one_bar_and_that_of_a_difference_is_red():
    net = model(Transformer)
    found = compare(net, planted(net, lambda n: setattr(n.blocks[1].norm1, "eps", 1e-2)), INPUTS[Transformer])
    rows = rows_of(found)
    assert len(rows) == len({row.spot.module for row in found.rows})
    [red] = [row for row in rows if "#d62728" in row]
    assert "blocks.1.norm1" in red
    assert f"relative {found.first.found.relative:.2g}" in red


def test_a_difference_that_is_infinite_has_a_full_bar():
    net = nn.Sequential(nn.Linear(2, 2))
    found = compare(net, planted(net, lambda n: n[0].bias.fill_(torch.nan)), torch.ones(1, 2))
    assert any("width:100%" in row for row in rows_of(found))


def test_of_many_modules_those_that_differ_are_shown():
    net = nn.Sequential(*(nn.Linear(2, 2) for _ in range(150)))
    other = copy.deepcopy(net)
    other[140].weight.data[0] += 1
    rows = rows_of(compare(net, other, torch.ones(1, 2)))
    assert len(rows) == 100
    assert sum("#d62728" in row for row in rows) == 1


@pytest.fixture
def page_file(tmp_path, monkeypatch):
    """The page of two recordings, one of which has a mistake in the second block."""
    monkeypatch.chdir(tmp_path)
    net = model(Transformer)
    other = planted(net, lambda n: setattr(n.blocks[1].norm1, "eps", 1e-2))
    for name, one in (("before.zip", net), ("<b>after.zip", other)):
        record(one, INPUTS[Transformer], name, loss=loss)
    assert main(["compare", "before.zip", "<b>after.zip", "--report", "page.html"]) == 1
    return tmp_path / "page.html"


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_the_page_shows_the_first_difference_and_links_to_its_row(chromium, page_file, scheme, width):  # noqa: F811 - the fixture again
    page = chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    with closing(page):
        said = []
        page.on("console", lambda message: said.append(message.text))
        page.goto(page_file.as_uri())
        assert page.title() == "before.zip against <b>after.zip · Hookboard"
        assert page.evaluate("document.documentElement.scrollWidth") == width
        link = page.get_by_role("link", name="blocks.1.norm1 (output)")
        assert link.bounding_box()["y"] < 900
        names = page.locator("tbody td:first-child").all_inner_texts()
        assert names.index("blocks.0") < names.index("blocks.1.norm1") < names.index("head")
        link.click()
        assert page.locator("tr:target").inner_text().startswith("blocks.1.norm1")
        assert page.locator("tr:target").bounding_box()["y"] < 900
        before, after = (page.locator(f"[id='row-blocks.{k}.norm1'] td").last.inner_html() for k in (0, 2))
        assert "#7f9fbf" in before
        assert "#e6a23c" in after
        assert said == []
