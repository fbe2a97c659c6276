"""Which optimizer steps are due."""


def is_due(step: int, every_n_steps: int) -> bool:
    """Whether the optimizer step with this number, counted from 0, is measured and logged.

    The last of every n steps is due, which is the one that Lightning's own logging takes, so that the points of
    both stand at the same steps. Never, where `every_n_steps` is 0 (Lightning's "no logging").

    >>> [step for step in range(10) if is_due(step, 4)]
    [3, 7]
    """
    return every_n_steps > 0 and (step + 1) % every_n_steps == 0
