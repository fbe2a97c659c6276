"""`nothing_gets_out`: stops code before it writes a file, uses the network, or hands something to another thread."""

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

_COMPILERS = ("importlib", "triton", "numba", "torch._dynamo", "torch._inductor", "torch.utils.cpp_extension")
"""Modules that load or compile something once and keep it. What they write is allowed."""


def _any_call(*args: Any, **kwargs: Any) -> bool:
    return True


def _writes(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> bool:
    return not {*"wax+"}.isdisjoint(mode) and str(file) != os.devnull


def _may_write(path: Any, flags: int, *args: Any, **kwargs: Any) -> bool:
    return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)) and str(path) != os.devnull


def _names_a_file(*args: Any, **kwargs: Any) -> bool:
    file = args[1] if len(args) > 1 else kwargs.get("f")
    return isinstance(file, str | os.PathLike)  # a copy of a tensor is saved in memory


def _all_calls(owner: Any, names: str, what: str) -> list[tuple[Any, str, Callable[..., bool], str]]:
    return [(owner, name, _any_call, what) for name in names.split() if hasattr(owner, name)]


_REFUSED: list[tuple[Any, str, Callable[..., bool], str]] = [
    (builtins, "open", _writes, "opens a file to write"),
    (io, "open", _writes, "opens a file to write"),
    (os, "open", _may_write, "opens a file to write"),
    (torch, "save", _names_a_file, "saves to a file"),
    *_all_calls(os, "remove unlink rename replace mkdir rmdir truncate symlink link chdir", "changes files"),
    *_all_calls(os, "write writev pwrite", "writes to a file"),
    *_all_calls(os, "fork system posix_spawn execv execve", "starts a process"),
    *_all_calls(subprocess.Popen, "__init__", "starts a process"),
    *_all_calls(multiprocessing.process.BaseProcess, "start", "starts a process"),
    *_all_calls(multiprocessing.connection.Connection, "_send_bytes", "writes to another process"),
    *_all_calls(socket.socket, "connect send sendall sendto", "uses the network"),
    *_all_calls(ssl.SSLSocket, "connect send sendall", "uses the network"),
    *_all_calls(threading.Thread, "start", "starts a thread"),
    *_all_calls(queue.Queue, "put", "hands something to another thread"),
    *_all_calls(ThreadPoolExecutor, "submit", "hands something to another thread"),
    *_all_calls(asyncio.BaseEventLoop, "call_soon_threadsafe", "hands something to another thread"),
]
"""The functions that are refused: owner, name, a predicate on the arguments of a call, what the user is told."""

TRACKERS = ("wandb", "mlflow", "comet_ml", "neptune", "clearml")
"""Experiment trackers: every function of these modules is refused, because each may write."""


class _RefusedError(BaseException):
    """Raised in place of a refused call. It is a BaseException, so that the user's `except Exception` lets it pass."""


@contextmanager
def nothing_gets_out() -> Iterator[None]:
    """Stop this thread inside the context before it writes to a file, a socket, a process or another thread's queue.

    The functions in `_REFUSED` are replaced meanwhile. An audit hook (`sys.addaudithook`) would see more calls, but it
    cannot be removed, and every later `id()` of the training would call it.

    Raises:
        CannotRunAgainError: when the context ends, if a call was refused; the code was stopped at that call.
    """
    refused: list[str] = []
    try:
        with ExitStack() as until_end:
            for owner, name, is_refused, what in (*_REFUSED, *_functions_of_trackers()):
                until_end.enter_context(_in_this_thread(owner, name, partial(_refuse, refused, what), is_refused))
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
                yield module, name, _any_call, f"calls {tracker}.{name}"


@contextmanager
def nothing_printed() -> Iterator[None]:
    """Discard what this thread prints to stdout and stderr, or logs, inside the context."""
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
    owner: Any, name: str, instead: Callable[..., Any], is_replaced: Callable[..., bool] = _any_call
) -> Iterator[None]:
    """Replace the function `owner.name` by `instead`, for calls that this thread makes inside the context.

    Calls whose arguments `is_replaced` returns False for, and those of `_COMPILERS`, reach the function.
    """
    function, thread = getattr(owner, name), threading.get_ident()

    @wraps(function)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == thread and is_replaced(*args, **kwargs) and not _is_loading():
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


def _is_loading() -> bool:
    """Return True if the user's code has reached this call through a module of `_COMPILERS`."""
    frame = inspect.currentframe()
    frame = frame and frame.f_back and frame.f_back.f_back
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("hookboard."):  # what called the user's code
            return False
        if module.startswith(_COMPILERS):
            return True
        frame = frame.f_back
    return False
