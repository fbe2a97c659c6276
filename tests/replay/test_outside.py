"""What would have an effect outside of the process is stopped before it has."""

import asyncio
import builtins
import contextlib
import importlib
import io
import os
import pathlib
import queue
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from hookboard.replay import CannotRunAgainError
from hookboard.replay.outside import nothing_gets_out, nothing_printed

PUT = queue.Queue()
POOL = ThreadPoolExecutor(1)
LOOP = asyncio.new_event_loop()
LOOP.close()  # it makes a pair of sockets


def connect():
    with socket.socket() as one:
        one.connect(("127.0.0.1", 1))


EFFECTS = {
    "opens a file to write": [
        lambda path: path.write_text("x"),
        lambda path: path.touch(),
        lambda path: os.open(path, os.O_CREAT | os.O_WRONLY),
    ],
    "saves to a file": [lambda path: torch.save(torch.ones(1), path), lambda path: torch.save(torch.ones(1), f=path)],
    "changes files": [lambda path: path.mkdir(), lambda path: os.symlink(path.parent, path)],
    "starts a process": [
        lambda path: subprocess.run(["touch", path], check=True),
        lambda path: os.system(f"touch {path}"),
    ],
    "uses the network": [lambda path: connect()],
    "starts a thread": [lambda path: threading.Thread(target=path.touch).start()],
    "hands something to another thread": [
        lambda path: PUT.put(1),
        lambda path: POOL.submit(path.touch),
        lambda path: LOOP.call_soon_threadsafe(path.touch),
    ],
}


@pytest.mark.parametrize(("what", "effect"), [(what, effect) for what, some in EFFECTS.items() for effect in some])
def test_an_effect_is_stopped_before_it_has_come(what, effect, tmp_path):
    with pytest.raises(CannotRunAgainError, match=what), nothing_gets_out():
        effect(tmp_path / "made")
    assert not [*tmp_path.iterdir()]
    assert PUT.empty()


def test_code_that_catches_every_error_is_found_out_at_the_end(tmp_path):
    def careless():
        with contextlib.suppress(BaseException):
            (tmp_path / "made").write_text("x")

    with pytest.raises(CannotRunAgainError, match="opens a file to write"), nothing_gets_out():
        careless()


def test_what_only_reads_or_stays_in_memory_goes_on(tmp_path):
    (tmp_path / "given").write_text("x")
    with nothing_gets_out():
        assert (tmp_path / "given").read_text() == "x"
        torch.save(torch.ones(1), io.BytesIO())
        pathlib.Path(os.devnull).write_text("x")


def test_other_threads_go_on(tmp_path):
    begin, done = threading.Event(), threading.Event()

    def work():
        begin.wait()
        (tmp_path / "made").write_text("x")
        print("said")
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    with nothing_printed(), nothing_gets_out():
        begin.set()
        done.wait()
    thread.join()
    assert (tmp_path / "made").exists()


def test_an_import_may_write_as_it_comes_only_once(tmp_path, monkeypatch):
    (tmp_path / "late_import.py").write_text("import pathlib\npathlib.Path(__file__).with_suffix('.made').touch()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with nothing_gets_out():
        importlib.import_module("late_import")
    del sys.modules["late_import"]
    assert (tmp_path / "late_import.made").exists()


def test_every_function_is_in_its_place_again():
    def present():
        writes = vars(sys.stdout).get("write")  # W&B puts one there
        functions = (builtins.open, io.open, os.open, torch.save, pathlib.Path.open)
        return *functions, socket.socket.sendall, queue.Queue.put, writes

    before, own = present(), set(vars(socket.socket))
    with nothing_printed(), nothing_gets_out():
        assert builtins.open is not before[0]
    assert present() == before
    assert set(vars(socket.socket)) == own
