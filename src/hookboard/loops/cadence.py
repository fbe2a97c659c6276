"""Which optimizer steps are due."""

from hookboard.loops.watch import Watch


def is_due(step: int, every_n_steps: int) -> bool:
    """Whether the optimizer step with this number, counted from 0, is measured and logged.

    The last of every n steps is due. Lightning's own logging takes the same one, so that the points of both stand at
    the same steps. If `every_n_steps` is 0 (Lightning's "no logging"), no step is due.

    >>> [step for step in range(10) if is_due(step, 4)]
    [3, 7]
    """
    return every_n_steps > 0 and (step + 1) % every_n_steps == 0


def is_due_now(watch: Watch, step: int) -> bool:
    """Whether this optimizer step of the training is due, at a cadence that may be stretched.

    Then so many steps lie between two due ones, wherever the factor has changed: a multiple of the new cadence may
    come right behind one of the old.
    """
    if not is_due(step, watch.every_n_steps):
        return False
    last, stretched = watch.last_due, watch.every_n_steps * watch.stretch
    if watch.stretch > 1 and last is not None and last != step and step - last < stretched:
        return False
    watch.last_due = step
    return True
