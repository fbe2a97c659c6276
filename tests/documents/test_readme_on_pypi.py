"""What PyPI is given as the README: its links are relative here and lead to the repository there, once it is public."""

import re
import runpy
import shutil

import pytest
import setuptools
from documents.pages import FENCE, PAGES, ROOT

PUBLIC = "https://example.org/somebody/hookboard"


@pytest.fixture
def given_to_pypi(tmp_path, monkeypatch):
    """What setup.py gives to setuptools, with this address in pyproject.toml."""

    def given(repository):
        passed = {}
        monkeypatch.setattr(setuptools, "setup", passed.update)
        for name in ("setup.py", "README.md", "pyproject.toml"):
            shutil.copy(ROOT / name, tmp_path)
        pyproject = tmp_path / "pyproject.toml"
        text, replaced = re.subn("^repository = .*$", f'repository = "{repository}"', pyproject.read_text(), flags=re.M)
        assert replaced == 1
        pyproject.write_text(text)
        monkeypatch.chdir(tmp_path)
        runpy.run_path("setup.py")
        return passed

    return given


def test_links_lead_to_the_repository_once_it_is_public(given_to_pypi):
    passed = given_to_pypi(f"{PUBLIC}/")
    links, text = passed["project_urls"], passed["long_description"]
    assert links["Repository"] == PUBLIC
    assert all(link.startswith(f"{PUBLIC}/") for name, link in links.items() if name != "Repository")
    assert f"]({PUBLIC}/raw/HEAD/docs/images/tab.png)" in text
    assert f"]({PUBLIC}/blob/HEAD/docs/health.md#options)" in text
    assert re.findall(r"\]\((?!https://)[^)]*\)", FENCE.sub("", text)) == []
    assert FENCE.findall(text) == FENCE.findall(PAGES["README.md"])


@pytest.mark.parametrize("written", ["git@example.org:somebody/hookboard.git", "example.org/somebody/hookboard"])
def test_what_is_no_address_of_a_page_stops_the_build(given_to_pypi, written):
    with pytest.raises(ValueError, match="is an address with https:// or empty"):
        given_to_pypi(written)


def test_before_there_is_no_link_to_it_and_those_of_the_page_stay_as_they_are(given_to_pypi):
    passed = given_to_pypi("")
    assert (passed["project_urls"], passed["long_description"]) == ({}, PAGES["README.md"])
