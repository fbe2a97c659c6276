"""What is said of tags when a run starts: callbacks that write the same ones, and a callback that writes many."""

from typing import Any

from lightning.pytorch import Trainer

from hookboard.loops.duties import Duties
from hookboard.loops.trainer import callbacks_of, inform, warn

MANY = 2000
"""More tags than anybody looks at one by one (a choice)."""


def warn_of_equal_tags(last: object, trainer: Trainer) -> None:
    """Warn once about tags that several callbacks write. Every callback calls this at the start of a run.

    How many tensors a module has is not known before it runs, so that there may be more equal tags.

    Args:
        last: the callback that calls this; it warns only if it is the last of hookboard's callbacks.
        trainer: holds all callbacks.
    """
    # One that is given twice is called once at each point of the run.
    callbacks = list({id(c): c for c in callbacks_of(trainer) if isinstance(c, Duties)}.values())
    if len(callbacks) < 2 or callbacks[-1] is not last or not trainer.loggers:
        return
    writers: dict[str, list[int]] = {}
    for number, callback in enumerate(callbacks):
        for tag in dict.fromkeys(callback.written_tags()):
            writers.setdefault(tag, []).append(number)
    shared = {tag: numbers for tag, numbers in writers.items() if len(numbers) > 1}
    if not shared:
        return
    numbers = sorted({number for several in shared.values() for number in several})
    names = " and ".join(f"{type(callbacks[number]).__name__} (callback {number + 1})" for number in numbers)
    warn(
        f"{names} of hookboard's {len(callbacks)} callbacks write the same tags, at least {len(shared)}, for example "
        f"what begins with {next(iter(shared))!r}: it gets several values at one step. Choose their arguments so that "
        "each tag is written by one of them."
    )


def inform_of_many_tags(callback: Duties[Any]) -> None:
    """Say so if a callback is going to write more than MANY tags, and how to narrow it."""
    count = sum(1 for _ in callback.written_tags())
    if count > MANY:
        inform(
            f"{type(callback).__name__} is going to write {count:,} tags, more than anybody looks at one by one. To "
            "narrow it, name layers (modules='encoder.*'), types (types=['Linear']) or fewer statistics. "
            "HealthMonitor() shows all layers in 22 tags."
        )
