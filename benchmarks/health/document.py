"""Writes docs/thresholds.md, the thresholds of all health rules: `python -m benchmarks.health.document`.

They stand once, in the source, with their meaning and where they come from.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEALTH = ROOT / "src" / "hookboard" / "health"
PAGE = ROOT / "docs" / "thresholds.md"

HEAD = """# Thresholds of the health rules

`python -m benchmarks.health.document` writes this page from the source, where each constant is defined once, with
what it means and where it comes from. "A choice" means that it was set by judgment and did not need to be tuned;
[benchmark.md](benchmark.md) says what the tuning half of the benchmark is."""

SEEN = ("losses", "silence", "comparison", "run", "run_table", "judge")
"""What is made of a run before any rule judges it."""

FILES = [*sorted((HEALTH / "rules").glob("*.py")), *(HEALTH / f"{name}.py" for name in SEEN)]


def page() -> str:
    """The page: a section for each file that has constants, and name, value and docstring of each."""
    sections = [HEAD]
    for path in FILES:
        tree = ast.parse(path.read_text())
        lines = [f"- **`{name}`** ({value}): {meaning}" for name, value, meaning in constants(tree)]
        if lines:
            about = (ast.get_docstring(tree) or "").splitlines()[0]
            sections.append("\n".join([f"## {path.relative_to(HEALTH)}", "", about, "", *lines]))
    return "\n\n".join(sections) + "\n"


def constants(tree: ast.Module) -> Iterator[tuple[str, str, str]]:
    """Name, value and docstring of each number that a file sets in capitals."""
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
            continue
        name, value = node.targets[0].id, ast.unparse(node.value)
        is_number = isinstance(node.value, ast.Constant | ast.UnaryOp) and not value.startswith(("'", '"'))
        if name.isupper() and not name.startswith("_") and is_number:
            said = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            text = str(after.value.value) if said else ""  # type: ignore[union-attr]  # an Expr then
            yield name, value, " ".join(text.split())


if __name__ == "__main__":
    PAGE.write_text(page())
