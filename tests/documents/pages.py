"""The README and the pages of docs/: their text, code blocks, tables and links."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]

PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text() for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
}
"""Path to text."""

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page in one language, in their order."""
    return [code for said, code in FENCE.findall(PAGES[page]) if said == language]


def prose(page: str) -> str:
    """A page without its code blocks."""
    return FENCE.sub("", PAGES[page])


def rows(page: str) -> list[list[str]]:
    """The cells of each row of each table, headings included."""
    lines = [line for line in prose(page).splitlines() if line.startswith("|") and not line.startswith("|--")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def links(page: str) -> list[str]:
    """Where links and pictures lead, but for those to other hosts."""
    return [to for to in re.findall(r"\]\(([^)\s]+)\)", prose(page)) if "://" not in to]


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(page: str) -> list[str]:
    """Every line of a shell, and every piece of code in the text."""
    inline = re.findall(r"(?<!`)`([^`]+)`(?!`)", prose(page))
    lines = [line.partition("  #")[0].strip() for block in blocks(page, "bash") for line in block.splitlines()]
    return [" ".join(command.split()) for command in [*inline, *lines] if command]
