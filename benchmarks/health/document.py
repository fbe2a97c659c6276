"""Prints the thresholds of all rules as docs/health.md has them: `python -m benchmarks.health.document`.

They stand once, in the source, with their meaning and where they come from.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

HEALTH = Path(__file__).parents[2] / "src" / "hookboard" / "health"

SEEN = ("loss_history", "losses", "chance", "spikes", "silence", "comparison", "running", "answers", "rates", "run")
"""What is made of a run before any rule judges it."""

FILES = [*(HEALTH / f"{name}.py" for name in SEEN), *sorted((HEALTH / "rules").glob("*.py"))]


def thresholds() -> str:
    """A table for each file that has any: name, value, and what the source says of it."""
    parts = []
    for path in FILES:
        tree = ast.parse(path.read_text())
        rows = [f"| `{name}` | {value} | {meaning} |" for name, value, meaning in constants(tree)]
        if rows:
            about = (ast.get_docstring(tree) or "").splitlines()[0]
            head = ["| constant | value | what it is |", "|---|---|---|"]
            parts.append("\n".join([f"**{path.relative_to(HEALTH)}**: {about}", "", *head, *rows]))
    return "\n\n".join(parts)


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
            yield name, value, " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    print(thresholds())
