"""Checks that the changelog, the citation and the tag of a release name the version of the package.

    python .ci/agree.py           a tag is looked at where the commit has one
    python .ci/agree.py v0.2.0    of this tag

A release has nothing left under [Unreleased] either, and its page on PyPI has links that lead somewhere and is true
there.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def found(pattern: str, path: Path) -> str:
    match = re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
    return match[1] if match else "nothing"


def faults(root: Path, tags: list[str]) -> list[str]:
    """What differs from the version of the package in `root`, a sentence for each."""
    version = found(r'^__version__ = "(.+)"', root / "src" / "hookboard" / "__init__.py")
    changelog, citation = root / "CHANGELOG.md", root / "CITATION.cff"
    said = {
        "CHANGELOG.md, below [Unreleased], is about": found(r"^## \[(\d.*?)\]", changelog),
        "CITATION.cff has": found(r"^version: (.+)", citation),
    } | {f"the tag {tag} is of": tag.removeprefix("v") for tag in tags}
    wrong = [f"{where} {other}, the package is {version}" for where, other in said.items() if other != version]
    dates = found(r"^## \[\d.*?\] - (.+)", changelog), found(r"^date-released: (.+)", citation)
    if dates[0] != dates[1]:
        wrong.append(f"CHANGELOG.md has the date {dates[0]}, CITATION.cff {dates[1]}")
    return wrong + (unready(root) if tags else [])


def unready(root: Path) -> list[str]:
    """What is still to do before a release, a sentence for each."""
    left = []
    if found(r"^## \[Unreleased\]\s+(?!## )(\S.*)", root / "CHANGELOG.md") != "nothing":
        left.append("CHANGELOG.md has lines under [Unreleased]")
    if found(r'^repository = "(.+)"', root / "pyproject.toml") == "nothing":
        left.append("pyproject.toml names no repository: on PyPI the links of README.md would lead nowhere")
    if found(r"(not on PyPI)", root / "README.md") != "nothing":
        left.append("README.md, which is the page on PyPI, says that hookboard is not there")
    return left


def tags_here(root: Path) -> list[str]:
    """The tags of the commit; none outside of a repository, such as in an unpacked source distribution."""
    if not (root / ".git").exists():
        return []
    command = ["git", "-C", str(root), "tag", "--points-at", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def main() -> None:
    tags = sys.argv[1:] or tags_here(ROOT)
    if wrong := faults(ROOT, tags):
        sys.exit("\n".join(wrong))
    print(f"version, changelog and citation agree{f' with {tags[0]}' if tags else '; there is no tag'}")
    for each in [] if tags else unready(ROOT):
        print(f"before a tag: {each}")


if __name__ == "__main__":
    main()
