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
    """The README as setup.py gives it, with these lines at the end of pyproject.toml."""

    def given(*lines):
        passed = {}
        monkeypatch.setattr(setuptools, "setup", passed.update)
        for name in ("setup.py", "README.md", "pyproject.toml"):
            shutil.copy(ROOT / name, tmp_path)
        pyproject = tmp_path / "pyproject.toml"
        pyproject.write_text("\n".join([pyproject.read_text(), *lines]))
        monkeypatch.chdir(tmp_path)
        runpy.run_path("setup.py")
        return passed["long_description"]

    return given


def test_links_lead_to_the_repository_once_it_is_public(given_to_pypi):
    text = given_to_pypi("[project.urls]", f'Repository = "{PUBLIC}/"')
    assert f"]({PUBLIC}/raw/HEAD/docs/images/tab.png)" in text
    assert f"]({PUBLIC}/blob/HEAD/docs/health.md#options)" in text
    assert re.findall(r"\]\((?!https://)[^)]*\)", FENCE.sub("", text)) == []
    assert FENCE.findall(text) == FENCE.findall(PAGES["README.md"])


def test_links_stay_as_they_are_before(given_to_pypi):
    assert given_to_pypi() == PAGES["README.md"]
