"""The warning about callbacks that write the same tag."""

from collections.abc import Sequence
from typing import Any

from hookboard.callbacks.duties import Duties
from hookboard.callbacks.trainer import warn


def warn_of_equal_tags(last: object, callbacks: Sequence[Duties[Any]]) -> None:
    """Warn once about tags that several callbacks write.

    Args:
        last: the callback that calls this; it warns only if it is the last of `callbacks`.
        callbacks: all of hookboard's callbacks in the Trainer, in their order.
    """
    if len(callbacks) < 2 or callbacks[-1] is not last:
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
    tags = "1 tag" if len(shared) == 1 else f"{len(shared)} tags"
    warn(
        f"{names} of hookboard's {len(callbacks)} callbacks write the same {tags}, for example "
        f"{next(iter(shared))!r}, which gets several values at one step. Choose their arguments so that each tag is "
        "written by one of them."
    )
