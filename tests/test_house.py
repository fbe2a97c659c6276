"""The plan of the house, held against the source: which file may import which, how long each folder may be.

CONTRIBUTING.md has the plan in words. Each rule here is a function from sources to faults, one sentence each.
"""

import ast
import importlib.util
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOMS = [
    "callbacks",  # what a Trainer is given
    "loops",  # when it is called, and what stands between it and the run
    "experiments",  # a model tried on some batches, and put back
    "board",  # event files -> the tab in TensorBoard, a page in one file, the terminal, arrays
    "comparing",  # two models, module by module
    "capturing",  # tensors at a prompt: kept, changed, and class-activation maps
    "tracing",  # a training step, followed from the batch to the loss and to its first NaN
    "health",  # readings -> verdicts
    "writers",  # readings and pictures -> a logger
    "measure",  # hooks on modules -> tensors -> rows -> readings
    "images",  # tensors -> pictures
    "model",  # names, kinds of layers, parameters, which of them are selected
    "base",  # messages, checks, ranks, the private names of torch
]
"""From top to bottom: a room imports from those below it."""

WITHOUT_LIGHTNING = [room for room in ROOMS if room not in ("loops", "experiments", "tracing", "writers", "base")]
"""What serves a run without a Trainer too."""

OF_OTHERS = ["base/torch_private.py", "loops/trainer.py", "writers/tensorboard.py"]
"""The only files with private names of torch and of Lightning."""

ASKS_A_TRAINER = {
    "tracing/step.py": "repeats the step of a LightningModule, which has loggers and schedulers to put back",
    "experiments/experiment.py": "trains some such steps",
}
"""Where a Trainer is asked for what no `Loop` has, and why; all others ask a `Loop`, which need not be a Trainer's."""

BUDGETS = {
    "": 90,
    "callbacks": 1671,
    "loops": 700,
    "experiments": 278,
    "board": 1210,
    "board/beside_script": 64,
    "comparing": 826,
    "capturing": 665,
    "tracing": 3699,
    "health": 1900,
    "health/rules": 2237,
    "writers": 312,
    "measure": 1900,
    "images": 599,
    "model": 509,
    "base": 541,
}
"""Lines of code of each folder, without blank lines, comments and docstrings. To change one is a decision, in a commit
of its own: down where a folder has become smaller, up only with a reason."""

ROOM_TO_GROW = 1.05

PUBLIC_ALL_THE_SAME = {"_asdict", "_fields", "_make", "_replace"}
"""What a NamedTuple offers."""

SOURCE = Path(__file__).parents[1] / "src" / "hookboard"

Sources = dict[str, str]
"""Path below the package to the text of that file."""

parsed = cache(ast.parse)


@cache
def nodes_of(text: str) -> list[ast.AST]:
    """Everything in a source, which several rules go through."""
    return list(ast.walk(parsed(text)))


def in_the_house() -> Sources:
    return {path.relative_to(SOURCE).as_posix(): path.read_text() for path in sorted(SOURCE.rglob("*.py"))}


def room_of(path: str) -> str:
    """The folder; "" for the files at the top; a file beside the folders is no room, but its own name."""
    folder, slash, _ = path.partition("/")
    return folder if slash else "" if path in ("api.py", "__init__.py", "__main__.py") else path


def floor_of(room: str) -> int:
    """How far down a room is; the top is -1."""
    return ROOMS.index(room) if room in ROOMS else -1


def imports(path: str, sources: Sources) -> Iterator[tuple[str, str, int]]:
    """Of each import from the package: the file that it reads, the name that it takes ("" for a module), the line."""
    package = ["hookboard", *path.split("/")[:-1]]
    for node in nodes_of(sources[path]):
        if isinstance(node, ast.Import):
            wanted = [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*start, *filter(None, [node.module])])
            wanted = [(module, alias.name) for alias in node.names]
        else:
            continue
        for module, name in wanted:
            if module.partition(".")[0] == "hookboard":
                below = "/".join(module.split(".")[1:])
                # `from hookboard.measure import moments` reads the file, unless the face itself has that name.
                if name and name not in face(below, sources) and is_file(f"{below}/{name}".strip("/"), sources):
                    yield file_of(f"{below}/{name}".strip("/"), sources), "", node.lineno
                else:
                    yield file_of(below, sources), name, node.lineno


def is_file(below: str, sources: Sources) -> bool:
    return file_of(below, sources) in sources


def file_of(below: str, sources: Sources) -> str:
    folder = f"{below}/__init__.py".removeprefix("/")
    return folder if folder in sources else f"{below}.py"


def face(below: str, sources: Sources) -> set[str]:
    """The names that an `__init__.py` imports or defines."""
    tree = parsed(sources.get(file_of(below, sources), ""))
    taken = {
        alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    return taken | {node.name for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}


def unknown_rooms(sources: Sources) -> list[str]:
    rooms = {room_of(path) for path in sources} - {"", *ROOMS}
    return [f"{room} is no room in tests/test_house.py" for room in sorted(rooms)]


def imports_upward(sources: Sources) -> list[str]:
    return [
        f"{path}:{line} imports {target}, which is above it"
        for path in sources
        for target, _, line in imports(path, sources)
        if room_of(target) != room_of(path) and floor_of(room_of(target)) < floor_of(room_of(path))
    ]


def imports_of_private_names(sources: Sources) -> list[str]:
    return [
        f"{path}:{line} imports {name}, which is for {target} alone"
        for path in sources
        for target, name, line in imports(path, sources)
        if is_private(name) and room_of(target) != room_of(path)
    ]


def imports_of_lightning(sources: Sources) -> list[str]:
    return [
        f"{path}:{node.lineno} imports lightning, of which {room_of(path)} knows nothing"
        for path, text in sources.items()
        for node in nodes_of(text)
        if isinstance(node, (ast.Import, ast.ImportFrom)) and room_of(path) in WITHOUT_LIGHTNING
        if any(module.split(".")[0] == "lightning" for module in modules_of(node))
    ]


def modules_of(node: ast.Import | ast.ImportFrom) -> list[str]:
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]


def circles(sources: Sources) -> list[str]:
    graph = {path: {target for target, _, _ in imports(path, sources)} for path in sources}
    faults = []
    while circle := circle_in(graph):
        faults.append(" imports ".join(circle))
        graph[circle[0]].discard(circle[1])
    return faults


def circle_in(graph: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1][::-1]
    return []


def code_lines(text: str) -> int:
    """How many lines hold code: all but blank lines, comments, and strings that stand alone, such as docstrings."""
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {line for one in tokens if one.type not in silent for line in range(one.start[0], one.end[0] + 1)}
    for node in nodes_of(text):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, node.end_lineno + 1))
    return len(lines)


def folders_over_budget(sources: Sources) -> list[str]:
    lines: Counter[str] = Counter()
    for path, text in sources.items():
        lines[path.rpartition("/")[0]] += code_lines(text)
    return [
        f"{folder}/ has {count} lines of code, {ROOM_TO_GROW * BUDGETS.get(folder, 0):.0f} at most"
        for folder, count in lines.items()
        if count > ROOM_TO_GROW * BUDGETS.get(folder, 0)
    ]


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def private_names_of_others(sources: Sources) -> list[str]:
    """Underscored names that no file of the package defines: those of torch, of Lightning or of somebody else."""
    trees = {path: parsed(text) for path, text in sources.items()}
    ours = {name for tree in trees.values() for name in defined(tree)} | PUBLIC_ALL_THE_SAME
    return [
        f"{path}:{line} uses {name}, which is private to another library; {' and '.join(OF_OTHERS)} may"
        for path, tree in trees.items()
        if path not in OF_OTHERS
        for name, line in private_uses(tree)
        if name not in ours
    ]


def defined(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def private_uses(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            yield node.attr, node.lineno
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            modules = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            if not any(module.startswith("hookboard") for module in modules):
                for name in ".".join(modules).split("."):
                    if is_private(name):
                        yield name, node.lineno
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "setattr", "hasattr"):
            for argument in node.args[1:2]:
                if isinstance(argument, ast.Constant) and is_private(str(argument.value)):
                    yield argument.value, node.lineno


def questions_to_a_trainer(sources: Sources) -> list[str]:
    """What is read or set of a Trainer where only a `Loop` is to be asked."""
    return [
        f"{path}:{node.lineno} asks a Trainer for {node.attr}; ask the Loop"
        for path, text in sources.items()
        if not path.startswith(("loops/", *ASKS_A_TRAINER))
        for node in nodes_of(text)
        if isinstance(node, ast.Attribute)
        and "trainer" in (getattr(node.value, "id", ""), getattr(node.value, "attr", ""))
    ]


def texts_without_encoding(sources: Sources) -> list[str]:
    """Files that are read or written in the encoding of the system, which on Windows is another one."""
    return [
        f"{path}:{node.lineno} names no encoding"
        for path, text in sources.items()
        for node in nodes_of(text)
        if isinstance(node, ast.Call)
        if getattr(node.func, "attr", "") in {"read_text", "write_text"} or getattr(node.func, "id", "") == "open"
        if "encoding" not in {keyword.arg for keyword in node.keywords}
    ]


RULES = [
    questions_to_a_trainer,
    unknown_rooms,
    imports_upward,
    imports_of_private_names,
    imports_of_lightning,
    circles,
    folders_over_budget,
    private_names_of_others,
    texts_without_encoding,
]


@pytest.mark.parametrize("rule", RULES)
def test_the_house_has_none_of(rule):
    faults = list(dict.fromkeys(rule(in_the_house())))
    if faults:
        pytest.fail("\n".join([f"{len(faults)} found:", *faults]), pytrace=False)


def test_the_plan_in_words_has_the_same_rooms_in_the_same_order():
    plan = Path(__file__).parents[1].joinpath("CONTRIBUTING.md").read_text()
    assert re.findall(r"^\| `(\w+)/` \|", plan, re.MULTILINE) == ROOMS


def test_the_source_is_found():
    assert {"__init__.py", "loops/trainer.py", "measure/__init__.py"} <= in_the_house().keys()


def test_what_the_tests_import_from_the_package_is_there():
    """pytest takes a file that cannot be imported for one whose doctests are to be skipped, and runs none of it."""
    missing = []
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "hookboard":
                module = importlib.import_module(str(node.module))
                missing += [f"{path.name}: {node.module}.{one.name}" for one in node.names if not has(module, one.name)]
    assert not missing


def has(module, name):
    return hasattr(module, name) or importlib.util.find_spec(f"{module.__name__}.{name}") is not None
