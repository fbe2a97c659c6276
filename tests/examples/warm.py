"""Runs examples as `python EXAMPLE ARGUMENTS...` does, after importing once what takes them seconds to import.

Reads a JSON list `[example, stdout, stderr, argument, ...]` from each line of its standard input, runs that in a fork
of itself, and answers with a line that holds the exit status.
"""

import json
import os
import runpy
import signal
import sys
import traceback

import lightning.pytorch.cli  # noqa: F401
import sklearn.datasets  # noqa: F401

import hookboard  # noqa: F401


def run(example, stdout, stderr, *arguments):
    for path, stream in ((stdout, 1), (stderr, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    signal.alarm(300)
    sys.argv = [example, *arguments]
    try:
        runpy.run_path(example, run_name="__main__")
    except SystemExit as stop:
        return int(stop.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            status = run(*json.loads(line))
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
