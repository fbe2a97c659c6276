"""Puts on the site what its pages link to outside of docs/, so that links are relative to the file, as on GitHub.

README.md is the front page; a file of source becomes a page that shows it.
"""

import re
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]

PAGES = {
    "README.md": "index.md",
    "docs/README.md": "questions.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
"""Path in the repository to page of the site."""

FOUND_LATER = {
    "api.md",
    "benchmark.md",
    "changelog.md",
    "contributing.md",
    "questions.md",
}
"""Pages that the search lists below others: they have every word, and are not what a user looks for."""

PICTURE = re.compile(r'<p>(<img\b[^>]*\bsrc="([^"]+)"[^>]*>)</p>')
"""A paragraph with a picture alone."""

LINK = re.compile(r"(?<=\]\()[^)\s#]+(?=[)#])")

SHOWN = "---\nsearch: {{exclude: true}}\n---\n\n# {path}\n\n````{language}\n{text}````\n"
"""The page of a file of source."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set the address of the site to `site` of [tool.hookboard] in pyproject.toml; empty while there is none."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (config.site_url,) = re.findall(r'^site = "(.*)"', text, re.MULTILINE)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/, and the files that any page links to."""
    for path in [*PAGES, *(f"docs/{file.src_uri}" for file in files.documentation_pages())]:
        text = (ROOT / path).read_text(encoding="utf-8")
        for wanted in {path, *linked(path, text).values()}:
            if place(wanted) not in files.src_uris:
                files.append(File.generated(config, place(wanted), content=shown(wanted)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to where files are on the site."""
    here = page.file.src_uri
    if here in FOUND_LATER:
        page.meta["search"] = {"boost": 0.3}
    path = next((path for path, uri in PAGES.items() if uri == here), f"docs/{here}")
    places = {link: relpath(place(to), dirname(here) or ".") for link, to in linked(path, markdown).items()}
    return LINK.sub(lambda found: places.get(found[0], found[0]), markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let a picture lead to the file, which a phone can show in full size; GitHub does so by itself."""
    return PICTURE.sub(r'<p><a href="\2" title="Open the picture in full size">\1</a></p>', html)


def linked(path: str, text: str) -> dict[str, str]:
    """The links of a page to files of the repository: as they are written, to paths in the repository."""
    found = {link: normpath(join(dirname(path), link)) for link in LINK.findall(text)}
    return {link: to for link, to in found.items() if (ROOT / to).is_file()}


def place(path: str) -> str:
    """Where a file of the repository is among the sources of the site."""
    if path in PAGES or path.startswith("docs/"):
        return PAGES.get(path, path.removeprefix("docs/"))
    return f"source/{path}" if path.endswith(".ipynb") else f"source/{path}.md"


def shown(path: str) -> str:
    """What the site has of a file that is not in docs/."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if path in PAGES or path.endswith(".ipynb"):
        return text
    return SHOWN.format(path=path, language=Path(path).suffix[1:] or "text", text=text)
