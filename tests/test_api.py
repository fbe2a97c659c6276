"""What `import hookboard` gives, and what it does not load."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import hookboard

IMPORTED_FIRST = {
    "measure": "from hookboard.measure import native; sys.exit(native._native is None)",
    "callbacks": "import hookboard.api",
    "all": (
        "import hookboard; [getattr(hookboard, n) for n in hookboard.__all__];"
        "sys.exit('tensorboard.plugin_util' in sys.modules)"
    ),
}
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


@pytest.fixture(scope="module")
def statuses():
    """The exit status of each process that imports a part of hookboard first."""
    command = [sys.executable, "-c", FORKS, json.dumps([*IMPORTED_FIRST.values()])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return dict(zip(IMPORTED_FIRST, map(int, done.stdout.split()), strict=True))


def test_everything_public_is_found_by_its_name():
    assert [name for name in hookboard.__all__ if getattr(hookboard, name, None) is None] == []


def test_nothing_public_has_the_name_of_a_folder_or_file():
    """A folder that is imported would take its place."""
    assert [name for name in hookboard.__all__ if type(getattr(hookboard, name)).__name__ == "module"] == []


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
def test_a_folder_that_is_imported_first_has_the_compiled_kernel(statuses):
    pytest.importorskip("hookboard.measure._native", reason="there is no C compiler")
    assert statuses["measure"] == 0


@pytest.mark.spawns
def test_the_callbacks_can_be_imported_first(statuses):
    assert statuses["callbacks"] == 0


@pytest.mark.spawns
def test_what_a_notebook_asks_of_everything_loads_no_torch():
    code = "import sys, hookboard; hasattr(hookboard, '_repr_html_'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.spawns
def test_nothing_public_loads_the_part_of_tensorboard_that_warns_when_it_is_imported(statuses):
    """Where warnings are errors, hookboard could not be imported."""
    assert statuses["all"] == 0


def test_a_type_checker_sees_no_function_that_answers_for_any_name():
    """It would take misspelled names, too."""
    tree = ast.parse(Path(hookboard.__file__).read_text())
    assert "__getattr__" not in [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert callable(hookboard.__getattr__)
