"""Warnings and errors: the category of warnings, errors about unknown names, and names in one line."""

import difflib
import functools
import itertools
import logging
import os
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

SHOWN = 12
MOST_QUOTED = 120
"""So many characters of what a user has given are quoted at most."""

LONGEST, PATIENCE = 200, 0.5
"""How many letters of a name `closest` compares at most, and how many seconds it takes for all names."""


class HookboardWarning(UserWarning):
    """The category of all warnings of hookboard, for `warnings.filterwarnings`."""


def warn(text: str) -> None:
    """Give a warning of the category `HookboardWarning` that begins with "hookboard:".

    It never raises: where a filter makes errors of warnings (`python -W error`), it is shown all the same.
    """
    hand_over(functools.partial(_give, f"hookboard: {text}"))


def _give(text: str) -> None:
    # Where our code stands is of no use to the reader, nor is its text, which Python would print.
    place = "hookboard", 1
    try:
        warnings.warn_explicit(text, HookboardWarning, *place)
    except HookboardWarning as given:
        warnings.showwarning(given, HookboardWarning, *place)


_thread = threading.local()


def hand_over(task: Callable[[], None]) -> None:
    """Do something that only the training thread may do: in that thread at once, elsewhere see `handing_over`."""
    tasks = getattr(_thread, "tasks", None)
    if tasks is None:
        task()
    else:
        tasks.append(task)


@contextmanager
def handing_over(tasks: list[Callable[[], None]]) -> Iterator[None]:
    """Collect what this thread hands over, warnings among it, for the training thread to do."""
    _thread.tasks = tasks
    try:
        yield
    finally:
        _thread.tasks = None


def rank_zero_warn(text: str) -> None:
    """Give a warning, see `warn`, in the first process of a run only: for what all processes find."""
    if _is_rank_zero():
        warn(text)


def inform(text: str) -> None:
    """Log one line of information that begins with "hookboard:", as Lightning logs its own, in the first process."""
    hand_over(functools.partial(_log, logging.INFO, text))


def alert(text: str) -> None:
    """Log the same as a line of warning, for who has silenced Lightning's information."""
    hand_over(functools.partial(_log, logging.WARNING, text))


def _log(level: int, text: str) -> None:
    if _is_rank_zero():
        logging.getLogger("lightning.pytorch").log(level, "hookboard: %s", text)


def ask_for_rank(is_rank_zero: Callable[[], bool]) -> None:
    """Have this function tell whether this is the first process of a run; without it, each process is."""
    global _is_rank_zero
    _is_rank_zero = is_rank_zero


_is_rank_zero: Callable[[], bool] = lambda: True  # noqa: E731  # `ask_for_rank` exchanges it


def warn_switched_off(what: str, error: Exception) -> None:
    """Warn that something is no longer measured or written.

    Args:
        what: what is switched off, the subject of the sentence.
        error: why.
    """
    cause = f"{type(error).__name__}: {error}{_place_of(error)}"
    warn(f"{what} is switched off from here on; all else goes on. Cause: {cause}")


def closest(given: str, valid: Iterable[str], count: int = 3) -> list[str]:
    """The names most like `given`, best first.

    A dotted name is also compared by its last part, so that `layr1` finds `backbone.layer1`. Names of very many letters
    are left out, and so is what cannot be compared within a moment.

    >>> closest("encoder.layr1", ["encoder.layer1", "encoder.layer2", "head"])
    ['encoder.layer1', 'encoder.layer2']
    """
    until = time.monotonic() + PATIENCE
    valid = [name for name in dict.fromkeys(valid) if len(name) <= LONGEST]
    tails = {name: name.rpartition(".")[2] for name in valid}
    whole = _near(given, valid, count, 0.5, until)
    near = _near(given.rpartition(".")[2], tails.values(), count, 0.6, until)
    by_tail = [name for name in valid if tails[name] in near]
    return list(dict.fromkeys([*whole, *by_tail]))[:count]


def _near(given: str, names: Iterable[str], count: int, cutoff: float, until: float) -> list[str]:
    """What `difflib.get_close_matches` finds by then: two names of 200 letters can take it half a second."""
    if len(given) > LONGEST:
        return []
    in_time = itertools.takewhile(lambda name: time.monotonic() < until, names)
    close = (name for name in in_time if difflib.get_close_matches(given, [name], 1, cutoff))
    return difflib.get_close_matches(given, close, count, cutoff)


def unknown(kind: str, given: object, valid: Iterable[str]) -> ValueError:
    """The error for a name that is not one of `valid`; it lists up to 32 of them.

    >>> unknown("statistic", "men", ["mean", "std"])
    ValueError("unknown statistic 'men'; did you mean 'mean'? Valid: mean, std.")
    """
    valid = list(valid)
    near = closest(given, valid) if isinstance(given, str) else []
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else "."
    return ValueError(f"unknown {kind} {quoted(given)}{hint} Valid: {listed(valid, 32)}.")


def quoted(given: object) -> str:
    """What a user has given, as Python would write it, in one line that is not too long.

    >>> quoted("a" * 1000)
    "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa ... aaaaaaaaaaaaaaaaaaaaaaaaaaaaa'"
    """
    text = " ".join(repr(given).split())
    return text if len(text) <= MOST_QUOTED else f"{text[: MOST_QUOTED // 2]} ... {text[-MOST_QUOTED // 4 :]}"


def listed(names: Iterable[str], most: int = SHOWN) -> str:
    """The names in one line; after the first `most` only the number of the others.

    >>> listed(["a", "b"])
    'a, b'
    """
    names = list(names)
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def _place_of(error: Exception) -> str:
    """Where an error was raised: the innermost line of code that is not ours; "" if all of it is ours."""
    ours = os.path.dirname(os.path.abspath(__file__))
    lines = traceback.extract_tb(error.__traceback__)
    others = [line for line in lines if not os.path.abspath(line.filename).startswith(ours + os.sep)]
    return f" ({os.path.basename(others[-1].filename)}, line {others[-1].lineno})" if others else ""
