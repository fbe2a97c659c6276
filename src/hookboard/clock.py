"""`Clock`: how much time the host spends in hooks on modules and tensors."""


class Clock:
    """Adds up the time that the host spends in hooks on modules and tensors.

    A hook that starts while `began` is set must not add its time: it is part of that of the hook that called it.
    """

    def __init__(self) -> None:
        self.spent = 0.0
        """Seconds spent, without the hook that is running now."""
        self.began: float | None = None
        """When the running hook began; None if none is running."""
