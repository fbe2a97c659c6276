"""The site that `make docs` builds of the documents."""

import os
import re
import subprocess
import sys

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


def test_every_page_is_on_it(site):
    pages = {page.removeprefix("docs/").removesuffix(".md") for page in PAGES} - {"README"}
    assert {path.parent.name for path in site.glob("*/index.html")} >= {*pages, "changelog", "contributing"}


def test_a_page_loads_nothing_from_another_host(site):
    for path in site.rglob("*.html"):
        for tag in re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", path.read_text()):
            assert not re.search(r"(?:src|href)=.?(?:https?:)?//", tag), (path, tag)


def test_a_link_to_a_file_of_the_source_leads_to_a_page_that_shows_it(site):
    (link,) = {*re.findall(r'href="([^"]*test_truth.py[^"]*)"', (site / "setups" / "index.html").read_text())}
    assert ">tests/callbacks/test_truth.py<" in (site / "setups" / link / "index.html").resolve().read_text()
