"""`nothing_gets_out`: keeps code from having an effect outside of the process, or in another thread."""

import asyncio
import builtins
import inspect
import io
import logging
import multiprocessing.connection
import multiprocessing.process
import os
import queue
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from types import FunctionType, MethodType
from typing import Any

import torch

from hookboard.replay.restorable import CannotRunAgainError

_FOR_ONCE = ("importlib", "triton", "numba", "torch._dynamo", "torch._inductor", "torch.utils.cpp_extension")
"""Modules whose effects come once, however often the code runs: what they load or compile, they keep."""


def _always(*args: Any, **kwargs: Any) -> bool:
    return True


def _writes(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> bool:
    return not {*"wax+"}.isdisjoint(mode) and str(file) != os.devnull


def _may_write(path: Any, flags: int, *args: Any, **kwargs: Any) -> bool:
    return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)) and str(path) != os.devnull


def _names_a_file(*args: Any, **kwargs: Any) -> bool:
    file = args[1] if len(args) > 1 else kwargs.get("f")
    return isinstance(file, str | os.PathLike)  # a copy of a tensor is saved in memory


def _all_of(owner: Any, names: str, what: str) -> list[tuple[Any, str, Callable[..., bool], str]]:
    return [(owner, name, _always, what) for name in names.split() if hasattr(owner, name)]


_REFUSED: list[tuple[Any, str, Callable[..., bool], str]] = [
    (builtins, "open", _writes, "opens a file to write"),
    (io, "open", _writes, "opens a file to write"),
    (os, "open", _may_write, "opens a file to write"),
    (torch, "save", _names_a_file, "saves to a file"),
    *_all_of(os, "remove unlink rename replace mkdir rmdir truncate symlink link chdir", "changes files"),
    *_all_of(os, "write writev pwrite", "writes to a file"),
    *_all_of(os, "fork system posix_spawn execv execve", "starts a process"),
    *_all_of(subprocess.Popen, "__init__", "starts a process"),
    *_all_of(multiprocessing.process.BaseProcess, "start", "starts a process"),
    *_all_of(multiprocessing.connection.Connection, "_send_bytes", "writes to another process"),
    *_all_of(socket.socket, "connect send sendall sendto", "uses the network"),
    *_all_of(ssl.SSLSocket, "connect send sendall", "uses the network"),
    *_all_of(threading.Thread, "start", "starts a thread"),
    *_all_of(queue.Queue, "put", "hands something to another thread"),
    *_all_of(ThreadPoolExecutor, "submit", "hands something to another thread"),
    *_all_of(asyncio.BaseEventLoop, "call_soon_threadsafe", "hands something to another thread"),
]
"""What is refused, by its owner and name: which calls of it, and what the user is told."""

TRACKERS = ("wandb", "mlflow", "comet_ml", "neptune", "clearml")
"""Libraries whose functions write from anywhere."""


class _RefusedError(BaseException):
    """Raised in place of an effect; the user's `except Exception` does not catch it."""


@contextmanager
def nothing_gets_out() -> Iterator[None]:
    """Raise before this thread writes to a file, a socket or a process, or hands something to another thread.

    Functions are replaced meanwhile. A hook of `sys.addaudithook` would see more, but stays for good: each `id()` of
    the whole training would call it.

    Raises:
        CannotRunAgainError: it was about to, when the context ends; it was stopped there.
    """
    refused: list[str] = []
    try:
        with ExitStack() as until_end:
            for owner, name, concerns, what in (*_REFUSED, *_functions_of_trackers()):
                until_end.enter_context(_in_this_thread(owner, name, partial(_refuse, refused, what), concerns))
            yield
    except (_RefusedError, Exception):
        if not refused:
            raise
    if refused:
        raise CannotRunAgainError(f"it {refused[0]}")


def _functions_of_trackers() -> Iterator[tuple[Any, str, Callable[..., bool], str]]:
    for tracker in TRACKERS:
        module = sys.modules.get(tracker)
        for name, value in list(vars(module).items()) if module is not None else ():
            if isinstance(value, FunctionType | MethodType):
                yield module, name, _always, f"calls {tracker}.{name}"


@contextmanager
def nothing_printed() -> Iterator[None]:
    """Drop what this thread prints or logs."""
    with ExitStack() as until_end:
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "write"):
                until_end.enter_context(_in_this_thread(stream, "write", lambda *args, **kwargs: None))
        until_end.enter_context(_in_this_thread(logging.Logger, "handle", lambda *args, **kwargs: None))
        yield


def _refuse(refused: list[str], what: str, *args: Any, **kwargs: Any) -> None:
    refused.append(what)
    raise _RefusedError


@contextmanager
def _in_this_thread(
    owner: Any, name: str, instead: Callable[..., Any], concerns: Callable[..., bool] = _always
) -> Iterator[None]:
    """Call `instead` in place of the calls of a function that it concerns: of this thread, and not made for once."""
    function, thread = getattr(owner, name), threading.get_ident()

    @wraps(function)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == thread and concerns(*args, **kwargs) and not _is_for_once():
            return instead(*args, **kwargs)
        return function(*args, **kwargs)

    is_own = name in vars(owner)
    setattr(owner, name, replaced)
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, function)
        else:
            delattr(owner, name)


def _is_for_once() -> bool:
    frame = inspect.currentframe()
    frame = frame and frame.f_back and frame.f_back.f_back
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("hookboard."):  # what called the user's code
            return False
        if module.startswith(_FOR_ONCE):
            return True
        frame = frame.f_back
    return False
