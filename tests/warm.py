"""A Python that has imported what takes seconds to import: `python warm.py SOCKET` serves, `conftest.py` says how.

`serve` waits for the command lines of stand-ins (`write_stand_in`), small programs that take the arguments of `python`.
Each gets a fork of this process that has the arguments, environment, folder and streams of its stand-in, and runs as
Python does: a script, `-c CODE` or `-m MODULE`. The stand-in ends with its exit status; where it is terminated, so is
the fork. What depends on how Python starts or ends needs a Python of its own: the order of imports, what is done at
exit, and variables that a library reads when it is imported.
"""

import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import traceback
from contextlib import suppress

LONG = [
    "hookboard.api",
    "lightning.pytorch.cli",
    "sklearn.datasets",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.utils.tensorboard",
]

STAND_IN = """#!{python} -SE
import json, os, signal, socket, sys

with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    socket.send_fds(server, [b" "], [0, 1, 2])
    given = dict(arguments=sys.argv[1:], environment=dict(os.environ), folder=os.getcwd())
    server.sendall(json.dumps(given).encode() + b"\\n")
    said = server.makefile()
    fork = int(said.readline())
    signal.signal(signal.SIGTERM, lambda *_: os.kill(fork, signal.SIGKILL))
    sys.exit(int(said.readline() or 1))
"""


def write_stand_in(path, address):
    """Write a program that runs what `python` would, in a fork of the server at this address."""
    path.write_text(STAND_IN.format(python=sys.executable, address=str(address)))
    path.chmod(0o755)


def serve(address):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        print("ready", flush=True)
        signal.signal(signal.SIGCHLD, reap)
        while True:
            client, _ = listener.accept()
            with client:
                if not os.fork():
                    listener.close()
                    run_for(client)


def reap(*_):
    """Have what ended forks took of the CPU count for this process."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def run_for(client):
    """Run what a stand-in has asked for in another fork, tell how that ends, and never return."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, streams, _, _ = socket.recv_fds(client, 1, 3)
    with client.makefile() as said:
        given = json.loads(said.readline())
    fork = os.fork()
    if not fork:
        client.close()
        become(given, streams)
    for stream in (0, 1, 2, *streams):
        os.close(stream)
    client.sendall(f"{fork}\n".encode())
    _, status = os.waitpid(fork, 0)
    client.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def become(given, streams):
    """Be the Python that is asked for, until the end."""
    signal.alarm(180)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(given["environment"])
    os.chdir(given["folder"])
    status = status_of(given["arguments"])
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


def status_of(arguments):
    """Run what Python is asked to run; its exit status."""
    sys.path[1:1] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path not in sys.path]
    try:
        run(*arguments)
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
            return 1
        return int(stop.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def run(what, *rest):
    if what == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    elif what == "-m":
        sys.argv = [*rest]
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [what, *rest]
        sys.path.insert(0, os.path.dirname(os.path.abspath(what)))
        runpy.run_path(what, run_name="__main__")


def import_what_takes_long():
    """What is imported here, forks need not import again, nor does their garbage collection touch and copy it."""
    for name in LONG:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    import_what_takes_long()
    serve(sys.argv[1])
