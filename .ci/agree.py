"""Checks that the changelog, the citation and the tag of a release name the version of the package.

    python .ci/agree.py           a tag is looked at where the commit has one
    python .ci/agree.py v0.2.0    of this tag

A release has nothing left under [Unreleased] either.
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
    if tags and found(r"^## \[Unreleased\]\s+(?!## )(\S.*)", changelog) != "nothing":
        wrong.append("CHANGELOG.md has lines under [Unreleased]")
    return wrong


def main() -> None:
    given = sys.argv[1:]
    command = ["git", "-C", str(ROOT), "tag", "--points-at", "HEAD"]
    tags = given or subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    if wrong := faults(ROOT, tags):
        sys.exit("\n".join(wrong))
    print(f"version, changelog and citation agree{f' with {tags[0]}' if tags else '; there is no tag'}")


if __name__ == "__main__":
    main()
