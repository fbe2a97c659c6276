"""The site that `make docs` builds of the documents."""

import json
import os
import re
import runpy
import subprocess
import sys
from types import SimpleNamespace

import pytest
from documents.pages import PAGES, ROOT

pytest.importorskip("material", reason="the dependency group docs is not installed")
pytest.importorskip("mkdocstrings", reason="the dependency group docs is not installed")

pytestmark = [pytest.mark.spawns, pytest.mark.xdist_group("site")]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr  # not --quiet: then it ignores warnings
    return folder


def test_its_address_is_that_of_pyproject(monkeypatch, tmp_path):
    hook = runpy.run_path(str(ROOT / "docs" / "hook.py"))
    (tmp_path / "pyproject.toml").write_text('[tool.hookboard]\nsite = "https://example.org/docs/"\n')
    monkeypatch.setitem(hook["on_config"].__globals__, "ROOT", tmp_path)
    assert hook["on_config"](SimpleNamespace(site_url=None)).site_url == "https://example.org/docs/"


def test_every_page_is_on_it(site):
    pages = {page.removeprefix("docs/").removesuffix(".md") for page in PAGES} - {"README"}
    assert {path.parent.name for path in site.glob("*/index.html")} >= {*pages, "changelog", "contributing"}


def test_a_page_loads_nothing_from_another_host(site):
    for path in site.rglob("*.html"):
        for tag in re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", path.read_text()):
            if 'rel="canonical"' not in tag:  # names the page's own address
                assert not re.search(r"(?:src|href)=.?(?:https?:)?//", tag), (path, tag)


PLACES = {
    "exclude": "health/#turn-things-off",
    "freeze": "setups/#lora-and-other-adapters",
    "attention head": "capture/#the-rules",
    "resume": "setups/#resume-from-a-checkpoint",
    "WandbLogger": "loggers/",
    "not measured": "limits/",
}


def test_words_that_users_look_for_lead_the_search_to_their_places_and_benchmarks_come_last(site):
    entries = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    said = {each["location"]: f"{each['title']} {each['text']}" for each in entries}
    for word, place in PLACES.items():
        assert re.search(rf"\b{word}\b", said[place], re.IGNORECASE), word
    boosts = {each["location"].partition("/")[0]: each.get("boost", 1) for each in entries}
    later = {page for page, boost in boosts.items() if boost < 1}
    assert later == {page.removesuffix(".md") for page in runpy.run_path(str(ROOT / "docs" / "hook.py"))["FOUND_LATER"]}


def test_every_picture_leads_to_its_file_in_full_size(site):
    pages = {path: path.read_text() for path in site.glob("**/index.html")}
    shown = [
        (path, link) for path, text in pages.items() for link in re.findall(r'<img alt="[^"]*" src="([^"]+)"', text)
    ]
    assert len({link.rpartition("/")[2] for _, link in shown}) == len([*(ROOT / "docs" / "images").iterdir()])
    for path, link in shown:
        assert re.search(rf'<a href="{re.escape(link)}"[^>]*><img ', pages[path]), (path, link)
        assert (path.parent / link).is_file()


def test_a_link_to_a_file_of_the_source_leads_to_a_page_that_shows_it(site):
    (link,) = {*re.findall(r'href="([^"]*test_truth.py[^"]*)"', (site / "setups" / "index.html").read_text())}
    assert ">tests/callbacks/test_truth.py<" in (site / "setups" / link / "index.html").resolve().read_text()
