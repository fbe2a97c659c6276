"""A visitor's regular expression in a process of its own: Python's `re` can take for ever, and holds all threads."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from threading import BoundedSemaphore

from hookboard import patterns
from hookboard.board.refusal import RefusalError

AT_ONCE = 4
"""So many such processes run at the same time; further requests wait."""

MOST_MEMORY = 512 << 20
"""Bytes of memory for each of them, where the system can limit it."""

SCRIPT = f"""
import json, sys
try:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, ({MOST_MEMORY}, {MOST_MEMORY}))
except (ImportError, ValueError, OSError):
    pass
sys.path.insert(0, sys.argv[1])
from hookboard.patterns import matched
try:
    answer = {{"names": matched(*json.load(sys.stdin))}}
except ValueError as error:
    answer = {{"error": str(error)}}
print(json.dumps(answer))
"""

_free = BoundedSemaphore(AT_ONCE)


def matched_by_expression(pattern: str, names: Sequence[str], until: float) -> list[str]:
    """The same as `hookboard.patterns.matched`, for a regular expression that may be a bad one.

    Args:
        pattern: it begins with `re:`.
        names: dotted names.
        until: when to give up, by `time.monotonic()`.

    Raises:
        RefusalError: it is no regular expression, or takes longer than that.
    """
    advice = "write it without repetitions of repetitions such as (a+)+, or as a pattern with * and **"
    too_slow = RefusalError(f"layers: {pattern!r} takes too long to match: {advice}.")
    if not _free.acquire(timeout=max(until - time.monotonic(), 0)):
        raise RefusalError(f"layers: {pattern!r} waited in vain for other expressions to be matched: try it again.")
    try:
        done = subprocess.run(
            [sys.executable or "python", "-I", "-S", "-c", SCRIPT, str(Path(patterns.__file__).parents[1])],
            input=json.dumps([pattern, list(names)]).encode(),
            capture_output=True,
            timeout=max(until - time.monotonic(), 0),
            check=True,
        )
    except subprocess.TimeoutExpired as error:
        raise too_slow from error
    except (subprocess.CalledProcessError, OSError) as error:  # out of memory, for one
        raise RefusalError(f"layers: {pattern!r} could not be matched ({error!r}): {advice}.") from error
    finally:
        _free.release()
    answer = json.loads(done.stdout)
    if "error" in answer:
        raise RefusalError(f"layers: {answer['error']}")
    found: list[str] = answer["names"]
    return found
