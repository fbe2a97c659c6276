"""Selects layers of a logged run by patterns and types, as hookboard's callbacks select modules."""

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import BoundedSemaphore

from hookboard import patterns
from hookboard.board.source import RefusalError
from hookboard.messages import closest, listed
from hookboard.patterns import REGEX_PREFIX, matched, parted
from hookboard.records import LayerFacts

MAX_PROCESSES = 4
"""Maximum number of processes that match regular expressions at a time; further requests wait."""

MAX_PROCESS_BYTES = 512 << 20
"""Maximum memory of each process in bytes, where the system can limit it."""

SCRIPT = f"""
import json, sys
try:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, ({MAX_PROCESS_BYTES}, {MAX_PROCESS_BYTES}))
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

_free = BoundedSemaphore(MAX_PROCESSES)


def matched_by_expression(pattern: str, names: Sequence[str], until: float) -> list[str]:
    """Return what `hookboard.patterns.matched` returns, computed in a separate process that can be stopped.

    Python's `re` can take forever on a bad regular expression, and blocks all threads meanwhile.

    Args:
        pattern: begins with `re:`.
        names: dotted names.
        until: the deadline, by `time.monotonic()`.

    Raises:
        RefusalError: it is not a regular expression, takes too long or too much memory, or no process was free before
            the deadline.
    """
    advice = "write it without repetitions of repetitions such as (a+)+, or as a pattern with * and **"
    too_slow = RefusalError(f"layers: {pattern!r} takes too long to match: {advice}.")
    if not _free.acquire(timeout=max(until - time.monotonic(), 0)):
        raise RefusalError(f"layers: {pattern!r} waited too long for other expressions to be matched: try again.")
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


MAX_MATCH_SECONDS = 1.0
"""Maximum time for matching all patterns and types of a request."""

MAX_PATTERN_CHARS = 1000
"""Maximum length of a pattern or type."""


def selected(layers: Mapping[str, LayerFacts], modules: Sequence[str], types: Sequence[str]) -> list[str]:
    """Return the names of the layers that patterns and types select, in the order of `layers`.

    Args:
        layers: name to facts.
        modules: patterns over dotted names; a leading `!` excludes. Empty: all names.
        types: class names, short or full; subclasses count, a leading `!` excludes. Empty: all types.

    Raises:
        RefusalError: a pattern or type matches nothing or is too long, or matching takes too long.
    """
    until = time.monotonic() + MAX_MATCH_SECONDS
    chosen = set(layers)
    for field, given, names_of in (("layers", modules, _names_matching), ("types", types, _names_of_type)):
        for one in given:
            if len(one) > MAX_PATTERN_CHARS:
                start = f"{one[:40]}..."
                raise RefusalError(
                    f"{field}: {start!r} has {len(one)} characters; up to {MAX_PATTERN_CHARS} are matched."
                )
        wanted, dropped = ([names_of(layers, one, until) for one in part] for part in parted(given))
        chosen = (chosen.intersection(set().union(*wanted)) if wanted else chosen).difference(*dropped)
    return [name for name in layers if name in chosen]


def _names_matching(layers: Mapping[str, LayerFacts], pattern: str, until: float) -> set[str]:
    if pattern.startswith(REGEX_PREFIX):
        found = set(matched_by_expression(pattern, list(layers), until))
    else:
        found = set(matched(pattern, _in_time(layers, f"layers: {pattern!r}", until)))
    if not found:
        what = f"the pattern {pattern!r} matches no layer's whole name"
        wider = f"**{pattern}**"
        if pattern and not pattern.startswith(REGEX_PREFIX):
            count = len(matched(wider, _in_time(layers, f"layers: {pattern!r}", until)))
            what += f", {wider!r} matches {count}" if count else ""
        raise RefusalError(_nothing("layers", what, pattern, [name for name in layers if name]))
    return found


def _names_of_type(layers: Mapping[str, LayerFacts], kind: str, until: float) -> set[str]:
    in_time = _in_time(layers, f"types: {kind!r}", until)
    found = {name for name in in_time if any(_is_called(full, kind) for full in layers[name].types)}
    if not found:
        present = sorted({layer.types[0].rpartition(".")[2] for layer in layers.values() if layer.types})
        if not present:
            raise RefusalError(f"types: the run has no record of its layers' types, {kind!r} cannot be looked for.")
        raise RefusalError(_nothing("types", f"no layer is a {kind!r}", kind, present))
    return found


def _in_time(names: Iterable[str], what: str, until: float) -> Iterator[str]:
    """Yield the names, until the deadline at most.

    Args:
        names: the names.
        what: the pattern or type that they are compared with, for the error.
        until: the deadline, by `time.monotonic()`.

    Raises:
        RefusalError: the deadline has passed before the last name.
    """
    for name in names:
        if time.monotonic() > until:
            raise RefusalError(f"{what} and what stands before it take too long to match: give fewer or shorter ones.")
        yield name


def _is_called(full: str, given: str) -> bool:
    """Return True if a class has this name: short, full, or as a package re-exports it.

    >>> _is_called("torch.nn.modules.conv.Conv2d", "torch.nn.Conv2d")
    True
    """
    module, _, name = full.rpartition(".")
    package, _, last = given.rpartition(".")
    return name == last and (not package or f"{module}.".startswith(f"{package}."))


def _nothing(field: str, what: str, given: str, valid: list[str]) -> str:
    near = closest(given.removeprefix(REGEX_PREFIX), valid)
    hint = f"; the closest are {', '.join(map(repr, near))}" if near else ""
    return f"{field}: {what}{hint}. Valid: {listed(valid)}."
