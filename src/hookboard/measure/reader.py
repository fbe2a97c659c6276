"""`Reader`: what hooks call with each tensor of one site."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from hookboard.measure import native


class _Reader:
    """Base of what hooks call with each tensor of one site. The compiled one reads a tensor that is like the last.

    This one does where nothing is compiled, or where torch is too old to be asked from C: it hands all of them on.
    """

    __slots__ = ("calls", "clock", "counts", "index", "lock", "most", "on_fault", "otherwise", "room", "rows")

    otherwise: Callable[[Tensor], object]
    """Is called with a tensor that is not read here."""
    on_fault: Callable[[Exception], object]
    """Is called with an error of reading."""
    index: int
    """The number of the site."""
    rows: list[Any]
    """Gets the number of each tensor that is read here, its row as bytes, and those of its channels or None."""
    room: int
    """How long that list may get here."""
    calls: int
    """How many tensors with channels were read since this was set to 0; no more than `most`."""
    most: int
    counts: Tensor | None
    """The bins of the values are added to this, shape (BINS,), int64, contiguous; None for no bins."""
    lock: Any
    """Is held while bins are added, until their row is in `rows`."""
    clock: Any
    """Its `spent` grows by the seconds of each call, unless it has `began`; None for no clock."""

    def __call__(self, tensor: Tensor) -> None:
        """Measure a tensor."""
        clock = self.clock
        if clock is None or clock.began is not None:
            self.otherwise(tensor)
            return
        start = time.perf_counter()
        self.otherwise(tensor)
        clock.spent += time.perf_counter() - start

    def read_as(self, key: bytes, given: tuple[int, int, int, int, int], with_abs_mean: bool) -> None:
        """Read every tensor of this form from now on, see `Form`. No square of its values may leave float64."""

    def read_nothing(self) -> None:
        """From now on every tensor goes to `otherwise`."""


if TYPE_CHECKING or native.COMPILED_READER is None:  # noqa: SIM108  # mypy takes no base from an expression
    Reader = _Reader
else:
    Reader = native.COMPILED_READER
