"""Does the suite notice a small change of the source? Changes one operator or number at a time, and runs the tests.

    python -m benchmarks.mutations                       20 changes, seed 0, all tests that `make test` runs
    python -m benchmarks.mutations --seed 3 --count 5    others

prints a row for each change: where, what became what, and the first test that failed, or "survived". The tests of the
folder's own name run first, then all others; a change that makes them hang counts as noticed. It first tries that all
pass without a change.
"""

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMIT_S = 1200

SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
}


def changed(node: ast.AST) -> ast.AST | None:
    """The node with one change; None if there is none to make."""
    match node:
        case ast.Compare(left, [operator], [right]):
            return ast.Compare(left, [SWAPPED[type(operator)]()], [right])
        case ast.BoolOp(operator, values):
            return ast.BoolOp(SWAPPED[type(operator)](), values)
        case ast.BinOp(left, operator, right) if type(operator) in SWAPPED:
            return ast.BinOp(left, SWAPPED[type(operator)](), right)
        case ast.UnaryOp(ast.Not(), operand):
            return operand
        case ast.Constant(bool() as value):
            return ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            return ast.Constant(value * 2 if abs(value) > 1 else value + 1)
    return None


def nodes_of(text: str) -> Iterator[ast.expr]:
    """What can be changed in a source: expressions of one line, but for annotations."""
    tree = ast.parse(text)
    notes = [getattr(node, name, None) for node in ast.walk(tree) for name in ("annotation", "returns")]
    typed = {id(inner) for note in notes if note is not None for inner in ast.walk(note)}
    for node in ast.walk(tree):
        is_one_line = isinstance(node, ast.expr) and node.lineno == node.end_lineno
        if is_one_line and id(node) not in typed and changed(node) is not None:
            yield node


def mutations(seed: int, count: int) -> Iterator[tuple[Path, str, str, str]]:
    """Yield file, its changed text, and what became what; each expression of the source is as likely as any other."""
    sources = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / "src").rglob("*.py"))}
    places = [(path, node) for path, text in sources.items() for node in nodes_of(text)]
    for path, node in random.Random(seed).sample(places, count):
        lines = sources[path].splitlines(keepends=True)
        line = lines[node.lineno - 1].encode()  # columns count bytes
        before = line[node.col_offset : node.end_col_offset].decode()
        after = f"({ast.unparse(changed(node))})"
        lines[node.lineno - 1] = (line[: node.col_offset] + after.encode() + line[node.end_col_offset :]).decode()
        yield path.relative_to(ROOT), "".join(lines), f"{path.name}:{node.lineno} `{before}`", f"`{after}`"


def first_failure(folder: Path, tests: list[str]) -> str:
    """The first test that fails in a copy of the repository; "" if none does."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "2", "--dist", "loadgroup", "-m", "not thorough"]
    environment = os.environ | {"PYTHONPATH": f"{folder / 'src'}{os.pathsep}{folder}"}
    try:
        done = subprocess.run(
            [*command, *tests], cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return "it hangs"
    if done.returncode in (0, 5):  # 5: there is none
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return failed[1] if failed else "it cannot be imported"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=20)
    options = parser.parse_args()
    noticed = 0
    print("| where | became | noticed by |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "copy"
        ignored = shutil.ignore_patterns(".git", ".venv*", "build", "dist", "cache", "*_cache", "__pycache__")
        shutil.copytree(ROOT, folder, ignore=ignored)
        if failed := first_failure(folder, []):  # or each change would count as noticed
            sys.exit(f"Without a change, {failed} fails.")
        for path, text, where, became in mutations(options.seed, options.count):
            original = (folder / path).read_text(encoding="utf-8")
            (folder / path).write_text(text, encoding="utf-8")
            own = f"tests/{path.parts[2]}"
            nearest = [own] if (folder / own).is_dir() else []
            found = (first_failure(folder, nearest) if nearest else "") or first_failure(folder, [])
            (folder / path).write_text(original, encoding="utf-8")
            noticed += bool(found)
            print(f"| {where} | {became} | {found or 'survived'} |", flush=True)
    print(f"\nNoticed: {noticed} of {options.count} (seed {options.seed}).")


if __name__ == "__main__":
    main()
