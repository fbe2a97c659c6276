"""Runs scripts as `python SCRIPT ARGUMENTS...` does, after importing once what takes each of them seconds to import.

Reads a JSON object from each line of its standard input: `command`, the script and its arguments; `ranks`, how many
processes run it; `stdout` and `stderr`, the files of what they print. Each rank is a fork of this process, with the
environment from which Lightning knows that others have started its ranks. Answers with a line that holds the first exit
status that is not 0, or 0. Where one rank fails, the others are killed, as they may wait for it.
"""

import json
import os
import runpy
import signal
import socket
import sys
import traceback

# What is imported here, children need not import again.
import lightning.pytorch.cli  # noqa: F401
import sklearn.datasets  # noqa: F401
import torch._dynamo
import torch.distributed.fsdp
import torch.distributed.tensor.parallel
import torch.utils.tensorboard  # noqa: F401

import hookboard.api  # noqa: F401


def run(script, *arguments):
    sys.argv = [script, *arguments]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as stop:
        return int(stop.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def fork(command, environment, stdout, stderr):
    child = os.fork()
    if child:
        return child
    os.environ.update(environment)
    for path, stream in ((stdout, 1), (stderr, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    signal.alarm(180)
    status = run(*command)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def run_on(ranks, command, stdout, stderr):
    environments = [{}]
    if ranks > 1:
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "NODE_RANK": "0"}
        shared["WORLD_SIZE"] = str(ranks)
        environments = [{**shared, "LOCAL_RANK": str(rank)} for rank in range(ranks)]
    running = {fork(command, environment, stdout, stderr) for environment in environments}
    failed = 0
    while running:
        child, status = os.wait()
        running.discard(child)
        if status and not failed:
            failed = os.waitstatus_to_exitcode(status)
            for other in running:
                os.kill(other, signal.SIGKILL)
    return failed


if __name__ == "__main__":
    for line in sys.stdin:
        print(run_on(**json.loads(line)), flush=True)
