"""Kinds of tests, one thread for each process, and no state that one test leaves to the next.

A test without a mark is `trains` in tests/callbacks and `unit` elsewhere. A test that does more than its marks say
(trains, compiles, starts a Python process) fails, so that `make test-fast` stays fast.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported; processes that tests start inherit it
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # its own processes take longer to start than our graphs

import functools
import gc
import importlib.metadata
import logging
import multiprocessing.process
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import google_crc32c
import pytest
import torch
from lightning.fabric.utilities import registry
from lightning.pytorch import Trainer
from tensorboard.compat.tensorflow_stub import pywrap_tensorflow
from torch._dynamo.utils import counters
from warm import write_stand_in
from xdist.scheduler import LoadGroupScheduling

from hookboard import HookboardWarning

torch.set_num_threads(1)

for device in (torch.cuda, torch.mtia, torch.xpu):
    # For each seed where there is no such device torch writes down the stack, which takes a millisecond below pytest.
    device.traceback = SimpleNamespace(format_stack=list)

if not torch.cuda.is_available():
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # otherwise each question for a GPU looks for the driver's library again

collect_ignore = [] if os.environ.get("TRITON_INTERPRET") else ["measure/interpreted.py"]
"""What `measure/test_triton.py` runs in a process of its own."""

KINDS = ("unit", "trains", "large", "compiles", "spawns", "browser", "gpu")
"""pyproject.toml says what each means."""

IMPLIED = {
    "large": {"trains"},
    "compiles": {"trains", "spawns"},  # torch.compile may start processes that compile
    "spawns": {"trains"},
    "browser": {"spawns"},
    "gpu": {"trains"},
}
"""What a test of a kind may do besides."""

done = set()
"""The kinds of work that the running test has done."""

unexpected = []
"""The warnings of hookboard that the running test has not asked for: they are shown where others raise."""


def noting(kind, function):
    def noted(*args, **kwargs):
        done.add(kind)
        return function(*args, **kwargs)

    return noted


def note_python(popen):
    def noted(self, args, *rest, **kwargs):
        command = [args] if isinstance(args, (str, bytes, os.PathLike)) else list(args)
        if command and os.fsdecode(command[0]) == sys.executable:
            done.add("spawns")
        return popen(self, args, *rest, **kwargs)

    return noted


@pytest.fixture(scope="session", autouse=True)
def work_is_noted():
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fit", "validate", "test", "predict"):
            patch.setattr(Trainer, name, noting("trains", getattr(Trainer, name)))
        patch.setattr(torch, "compile", noting("compiles", torch.compile))
        patch.setattr(subprocess.Popen, "__init__", note_python(subprocess.Popen.__init__))
        start = multiprocessing.process.BaseProcess.start
        patch.setattr(multiprocessing.process.BaseProcess, "start", noting("spawns", start))
        yield
        gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def what_is_installed_is_looked_through_once():
    """Each Trainer asks for callbacks of others in the metadata of all that is installed, for 20 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "entry_points", functools.cache(importlib.metadata.entry_points), raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def checksums_are_quick():
    """TensorBoard's reader of event files adds up each byte in Python."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pywrap_tensorflow, "crc32c", google_crc32c.value)
        yield


@pytest.fixture(scope="module", autouse=True)
def what_others_left_is_no_garbage():
    """What is there before a file of tests is not looked at again: a `gc.collect()` takes 10 ms, not up to 500."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def marks_say_what_the_test_does(request):
    done.clear()
    yield
    marked = {mark.name for mark in request.node.iter_markers()}
    for kind in sorted(done - marked.union(*(IMPLIED.get(kind, ()) for kind in marked))):
        pytest.fail(f"This test {kind}: mark it with @pytest.mark.{kind}.", pytrace=False)


def pytest_runtest_setup(item):
    unexpected.clear()
    shown = warnings.showwarning

    def note(message, category, *rest):
        if issubclass(category, HookboardWarning):
            unexpected.append(message)
        else:
            shown(message, category, *rest)

    warnings.showwarning = note  # pytest puts it back after each test


@pytest.fixture(autouse=True)
def no_warning_of_ours_is_missed():
    yield
    if unexpected:
        pytest.fail(f"Unexpected: {'; '.join(map(str, unexpected))}", pytrace=False)


@pytest.fixture(autouse=True)
def the_modes_of_torch_are_as_before():
    before = modes_of_torch()
    yield
    changed = sorted(modes_of_torch() - before)
    torch.set_grad_enabled(True)
    if changed:
        pytest.fail(f"The test left these modes: {changed}", pytrace=False)


def modes_of_torch():
    return {
        ("grad", torch.is_grad_enabled()),
        ("inference", torch.is_inference_mode_enabled()),
        ("anomaly", torch.is_anomaly_enabled()),
        ("autocast", torch.is_autocast_enabled("cpu")),
        ("deterministic", torch.are_deterministic_algorithms_enabled()),
        ("default type", str(torch.get_default_dtype())),
    }


@pytest.fixture(autouse=True)
def lightning_goes_on_talking():
    """The benchmarks silence it for the whole process."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    yield
    logger.setLevel(level)


@pytest.fixture(autouse=True)
def compiler_is_fresh(request):
    """What torch.compile keeps for the whole process is forgotten before and after each test that compiles."""
    if request.node.get_closest_marker("compiles") is None:
        yield
        return
    forget_compiled()
    yield
    forget_compiled()


def forget_compiled():
    torch.compiler.reset()
    torch.compiler.set_stance("default")
    counters.clear()


def without_rank():
    """The environment, without what would say that this is a rank."""
    return {key: value for key, value in os.environ.items() if key not in ("MASTER_PORT", "LOCAL_RANK")}


@pytest.fixture(scope="session")
def python():
    """The path of a Python that has imported what takes seconds to import: see warm.py."""
    folder = Path(tempfile.mkdtemp())  # the path of a socket must be short
    command = [sys.executable, Path(__file__).with_name("warm.py"), folder / "socket"]
    with subprocess.Popen(command, env=without_rank(), stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout.readline() == "ready\n"
        write_stand_in(folder / "python", folder / "socket")
        yield str(folder / "python")
        server.terminate()
    shutil.rmtree(folder)


@pytest.fixture
def python_is_warm(python, monkeypatch):
    """What starts another Python starts the warm one."""
    monkeypatch.setattr(sys, "executable", python)


@pytest.fixture(scope="session")
def run_script(python, tmp_path_factory):
    """What runs a script on some ranks, in the environment from which Lightning knows them, and says how that ended."""
    printed, root = tmp_path_factory.mktemp("printed"), Path(__file__).parents[1]

    def run(script, *arguments, ranks=1):
        command, environments = [python, str(script), *map(str, arguments)], [without_rank()]
        if ranks > 1:
            shared = {
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": free_port(),
                "NODE_RANK": "0",
                "WORLD_SIZE": str(ranks),
            }
            environments = [without_rank() | shared | {"LOCAL_RANK": str(rank)} for rank in range(ranks)]
        with open(printed / "stdout", "w") as stdout, open(printed / "stderr", "w") as stderr:
            streams = {"stdout": stdout, "stderr": stderr}
            status = first_fault([subprocess.Popen(command, cwd=root, env=each, **streams) for each in environments])
        texts = {stream: (printed / stream).read_text() for stream in streams}
        return SimpleNamespace(returncode=status, **texts)

    return run


def first_fault(running):
    """Wait for processes; the first exit status that is not 0. The others are ended: they may wait for that one."""
    while any(process.poll() is None for process in running) and not any(process.poll() for process in running):
        time.sleep(0.01)
    fault = next((process.returncode for process in running if process.returncode), 0)
    for process in running:
        process.terminate()
        process.wait()
    return fault


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


THOROUGH = (
    "benchmarks/",
    "combinations/",
    "board/test_page_in_a_file.py",
    "board/test_page_runs.py",
    "board/test_page_use.py",
    "board/test_run_script.py",
    "callbacks/test_at_a_prompt.py",
    "callbacks/test_memory.py",
    "comparing/test_memory.py",
    "comparing/test_ranks.py",
    "documents/test_site.py",
    "examples/test_command_line.py",
    "measure/test_triton.py",
    "ranks/test_apart.py",
    "ranks/test_drifted.py",
    "ranks/test_judged.py",
    "ranks/test_left.py",
    "ranks/test_looped.py",
    "ranks/test_two_processes.py",
    "test_packaging.py",
    "tracing/test_two_ranks.py",
)
"""What takes half of the time and starts most processes: `make test-all` runs it, each night and before a release."""


def pytest_itemcollected(item):
    folder = Path(__file__).parent
    if folder in item.path.parents and item.path.relative_to(folder).as_posix().startswith(THOROUGH):
        item.add_marker("thorough")
    if not any(item.get_closest_marker(kind) for kind in KINDS):
        item.add_marker("trains" if item.path.parent.name == "callbacks" else "unit")
    if item.get_closest_marker("spawns"):
        # With `--dist loadgroup` one worker runs them all, so that runs which tests share are made once.
        item.add_marker(pytest.mark.xdist_group("spawns"))
    if item.get_closest_marker("browser"):
        item.add_marker(pytest.mark.xdist_group("browser"))


class ByGroupOrFile(LoadGroupScheduling):
    """One worker runs all tests of a group, or of a file, so that what they share is made once."""

    def _split_scope(self, nodeid):
        return super()._split_scope(nodeid).partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    config.option.loadscopereorder = False  # files with few tests would come last, and some of those are long
    return ByGroupOrFile(config, log) if config.getvalue("dist") == "loadgroup" else None
