"""Writes what pages and a few files say of the source: `python -m benchmarks.document`.

Each rule, statistic, callback and edit rule stands once, in the source, with what is said of it. A part that is
written is marked in its file, by comments before and after it; tests/documents/test_written.py says which file is not
as it should be.
"""

import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import yaml
from lightning.pytorch.loggers import Logger

from hookboard.base.messages import PAGE, sections
from hookboard.capturing.edits import EditRule
from hookboard.loops.callback import HookboardCallback
from hookboard.measure.statistics import DERIVED, FORMULAS

ROOT = Path(__file__).parents[1]

API = ROOT / "src/hookboard/api.py"

RULES_PAGE = PAGE.relative_to(ROOT).as_posix()
"""The rules in words, for `hookboard explain`; docs/rules.md is a copy of it."""

CALLBACKS = "hookboard.callbacks", HookboardCallback
EDITS = "hookboard.capturing", EditRule
LOGGERS = "hookboard.writers", Logger
"""Where there are public classes that need no list, and the base by which they are found."""


def table(head: str, rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Yield the lines of a table in Markdown."""
    yield f"| {head} |"
    yield "|" + "---|" * (head.count("|") + 1)
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def index_of_rules() -> Iterator[str]:
    """Yield a paragraph for each section of the page of the rules, with links to the section and to its rules."""
    for section, names in sections().items():
        rules = ", ".join(f"[`{name}`](#{name})" for name in names)
        heading = f"**[{section}](#{section.lower().replace(' ', '-')}):**"
        yield from ["", textwrap.fill(f"{heading} {rules}", 120, break_long_words=False, break_on_hyphens=False)]
    yield ""


def index() -> Iterator[str]:
    """Yield the list of pages, by the sections of the site."""
    for section in yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]:
        for title, pages in section.items():
            if isinstance(pages, str):
                continue
            yield from ["", f"## {title}", ""]
            for page in pages:
                if (ROOT / "docs" / page).exists():  # the others stand elsewhere
                    head = (ROOT / "docs" / page).read_text(encoding="utf-8").partition("\n")[0]
                    yield f"- [{head.removeprefix('# ')}]({page})"
    yield ""


def statistics() -> Iterator[str]:
    """Yield the table of the statistics of any tensor."""
    rows = [(f"`{name}`", each.about) for name, each in {**FORMULAS, **DERIVED}.items()]
    yield from table("name | formula", rows)


def scales() -> Iterator[str]:
    """Yield the lines of a dictionary: each statistic with the scale of its axis."""
    yield from (f'    "{name}": "{each.scale}",' for name, each in {**FORMULAS, **DERIVED}.items())


def classes(package: str, base: type) -> dict[str, str]:
    """The public classes that the files of a package define, but for those that are abstract: name to file."""
    found = {}
    for file in iter_modules(import_module(package).__path__):
        module = import_module(f"{package}.{file.name}")
        for name, value in vars(module).items():
            is_ours = inspect.isclass(value) and issubclass(value, base) and value.__module__ == module.__name__
            if is_ours and not name.startswith("_") and not inspect.isabstract(value):
                found[name] = module.__name__
    return dict(sorted(found.items()))


def callbacks() -> Iterator[str]:
    """Yield the table of the callbacks: the first sentence of the docstring of each."""
    rows = []
    for name, module in classes(*CALLBACKS).items():
        rows.append((f"`{name}`", first_sentence(getattr(import_module(module), name))))
    yield from table("callback | what it does", rows)


def edit_rules() -> Iterator[str]:
    """Yield the table of the rules that change tensors."""
    rows = []
    for name, module in classes(*EDITS).items():
        rule = getattr(import_module(module), name)
        rows.append((f"`{name}({', '.join(inspect.signature(rule).parameters)})`", first_sentence(rule)))
    yield from table(
        "rule | what it does to a tensor",
        [*rows, ("any function of a tensor", "Replace the tensor with the function's result")],
    )


def on_page_of_api(*bases: tuple[str, type]) -> Iterator[str]:
    """Yield what makes the site show the docstrings of the classes that packages define, each with its base."""
    for package, base in bases:
        for name in classes(package, base):
            yield from ["", f"::: hookboard.{name}"]
    yield ""


def first_sentence(documented: object) -> str:
    """Return the first paragraph of a docstring up to its first full stop, without it."""
    paragraph = (inspect.getdoc(documented) or "").split("\n\n")[0]
    return " ".join(paragraph.split()).split(". ")[0].removesuffix(".")


WRITTEN: dict[tuple[str, str], Callable[[], Iterable[str]]] = {
    ("docs/README.md", "pages"): index,
    (RULES_PAGE, "index of rules"): index_of_rules,
    ("docs/statistics.md", "statistics"): statistics,
    ("docs/layers.md", "callbacks"): callbacks,
    ("docs/capture.md", "edit rules"): edit_rules,
    ("docs/api.md", "callbacks and loggers"): lambda: on_page_of_api(CALLBACKS, LOGGERS),
    ("docs/api.md", "edit rules"): lambda: on_page_of_api(EDITS),
    ("src/hookboard/board/logged_run.py", "scales"): scales,
}
"""File and name of each part that is written, and its lines."""

LISTING_STATISTICS = "src/hookboard/callbacks/numbers.py"
"""The file whose docstrings name all statistics."""


def with_part(text: str, name: str, lines: Iterable[str]) -> str:
    """Return the text of a file with these lines between the two comments that have the name of the part."""
    pattern = re.compile(
        rf"(^[^\n]*\b{name}: written by [^\n]*\n).*?(^[^\n]*\bend of {name}\b)", re.DOTALL | re.MULTILINE
    )
    assert len(pattern.findall(text)) == 1, name
    return pattern.sub(lambda found: found[1] + "\n".join([*lines, ""]) + found[2], text)


def with_names(text: str) -> str:
    """Return the text of a file with all statistics in its docstrings, after `The names are`."""
    names = f"The names are `{' '.join([*FORMULAS, *DERIVED])}`."
    filled = textwrap.fill(names, 120, initial_indent=12 * " ", subsequent_indent=12 * " ")
    pattern = re.compile(r"^ {12}The names are `[^`]*`\.", re.MULTILINE)
    assert pattern.search(text)
    return pattern.sub(lambda _: filled, text)


def written() -> dict[str, str]:
    """Each file that has written parts, as it should be."""
    texts = {
        path: (ROOT / path).read_text(encoding="utf-8") for path in [LISTING_STATISTICS, *(path for path, _ in WRITTEN)]
    }
    texts[LISTING_STATISTICS] = with_names(texts[LISTING_STATISTICS])
    texts[RULES_PAGE] = PAGE.read_text(encoding="utf-8")
    for (path, name), lines in WRITTEN.items():
        texts[path] = with_part(texts[path], name, lines())
    return texts | {"docs/rules.md": texts[RULES_PAGE]}


def missing_exports() -> dict[str, str]:
    """What is public and not in `api.py` yet: name to the module that has it."""
    text = API.read_text(encoding="utf-8")
    found = {name: module for kind in (CALLBACKS, EDITS, LOGGERS) for name, module in classes(*kind).items()}
    return {name: module for name, module in found.items() if f'"{name}"' not in text}


def export(names: dict[str, str]) -> None:
    """Add names to what `api.py` imports and lists in `__all__`; ruff sorts both."""
    imports = "".join(f"from {module} import {name}\n" for name, module in names.items())
    text = re.sub(r"^from ", f"{imports}from ", API.read_text(encoding="utf-8"), count=1, flags=re.MULTILINE)
    listed = "".join(f'    "{name}",\n' for name in names)
    API.write_text(text.replace("__all__ = [\n", f"__all__ = [\n{listed}", 1), encoding="utf-8")
    for command in (["check", "--fix", "--quiet", "--select", "I,RUF022"], ["format", "--quiet"]):
        subprocess.run([sys.executable, "-m", "ruff", *command, str(API)], cwd=ROOT, check=True)


if __name__ == "__main__":
    for path, text in written().items():
        (ROOT / path).write_text(text, encoding="utf-8")
    if missing := missing_exports():
        export(missing)
