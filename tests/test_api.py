"""What `import hookboard` gives, and what it does not load."""

import ast
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import hookboard

IMPORTED_FIRST = [
    "import hookboard.api",
    (  # it warns when it is imported: where warnings are errors, hookboard could not be imported
        "import hookboard; [getattr(hookboard, n) for n in hookboard.__all__];"
        "sys.exit('tensorboard.plugin_util' in sys.modules)"
    ),
]
"""What a Python that has imported nothing of hookboard is to run."""

FORKS = """
import json, os, sys, lightning.pytorch

for code in json.loads(sys.argv[1]):
    if not (fork := os.fork()):
        exec(code)
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]), flush=True)
"""
"""Importing Lightning takes seconds."""


def test_everything_public_is_found_by_its_name_and_no_folder_takes_its_place():
    found = {name: getattr(hookboard, name, None) for name in hookboard.__all__}
    assert [name for name, each in found.items() if each is None or isinstance(each, ModuleType)] == []


def test_an_unknown_name_is_an_error_that_quotes_it():
    with pytest.raises(AttributeError, match="module 'hookboard' has no attribute 'HealthMonitr'"):
        hookboard.HealthMonitr  # noqa: B018 - it is the look that raises


@pytest.mark.spawns
def test_an_import_draws_no_random_number():
    code = """
import random, sys, numpy, torch
states = [random.getstate, lambda: str(numpy.random.get_state()), lambda: torch.get_rng_state().tolist()]
before = [one() for one in states]
from hookboard import HealthMonitor
sys.exit(before != [one() for one in states])
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.spawns
def test_each_part_can_be_imported_first():
    """The compiled kernel is then there, and nothing that warns."""
    of_kernel = "from hookboard.measure import native; sys.exit(native._native is None)"
    has_kernel = importlib.util.find_spec("hookboard.measure._native") is not None
    codes = [*IMPORTED_FIRST, *([of_kernel] if has_kernel else [])]
    command = [sys.executable, "-c", FORKS, json.dumps(codes)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.split() == ["0"] * len(codes)


@pytest.mark.spawns
def test_what_a_notebook_asks_of_everything_loads_no_torch():
    code = "import sys, hookboard; hasattr(hookboard, '_repr_html_'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_type_checker_sees_no_function_that_answers_for_any_name():
    """It would take misspelled names, too."""
    tree = ast.parse(Path(hookboard.__file__).read_text())
    assert "__getattr__" not in [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert callable(hookboard.__getattr__)
